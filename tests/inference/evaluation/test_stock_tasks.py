"""Tasks as lm-eval loads them; task files of a test stand in for its own, which need a network."""

import functools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from lm_eval.tasks import TaskManager

from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from qkvary.inference.evaluation import stock_tasks
from qkvary.inference.evaluation.network_lm import NetworkLM, _sampling
from qkvary.inference.evaluation.stock_tasks import (
    StockScore,
    evaluate_stock_tasks,
    find_stock_tasks,
)
from qkvary.inference.requests import Sampling
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, UsageError
from tests.contracts.variant_cases import randomize
from tests.inference.evaluation.networks import byte_network
from tests.inference.evaluation.stock_task_files import ROWS, TASKS, write_stock_tasks

CONTEXT = 96


@pytest.fixture
def model() -> LanguageModel:
    network = byte_network("Q-K=V@rotary", max_tokens=CONTEXT)
    randomize(network, seed=2)
    return network.eval()


def continue_greedily(model: LanguageModel, prompt: bytes, steps: int) -> bytes:
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(model(torch.tensor(tokens)[None])[0, -1].argmax()))
    return bytes(tokens[len(prompt) :])


@pytest.fixture(autouse=True)
def folder(model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of tasks that stands for those of lm-eval."""
    rows = []
    for number, row in enumerate(ROWS):
        # The right answer to all questions but the last.
        written = continue_greedily(model, f"Q: {row['question']}".encode(), 7)
        text = written.decode("utf-8", "replace").partition("@")[0]
        rows.append({**row, "written": text if number < 2 else "something else"})
    write_stock_tasks(tmp_path, rows)
    manager = functools.partial(TaskManager, include_path=str(tmp_path), include_defaults=False)
    monkeypatch.setattr(stock_tasks, "TaskManager", manager)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))


def score(model: LanguageModel, prompt: bytes, answer: bytes) -> float:
    row = torch.tensor(list(prompt + answer))
    logits = model(row[None, :-1])[0].log_softmax(dim=-1)
    places = range(len(prompt) - 1, len(row) - 1)
    return sum(logits[at, row[at + 1]].item() for at in places)


def test_metrics_are_those_of_the_network(model: LanguageModel) -> None:
    manager = find_stock_tasks(list(TASKS))
    found = evaluate_stock_tasks(model, ByteTokenizer(), list(TASKS), manager, batch_size=2)
    assert set(found) == set(TASKS)
    assert {one.documents for one in found.values()} == {3}
    assert {one.fewshot for one in found.values()} == {0}
    hits = []
    for row in ROWS:
        scores = [
            score(model, f"Q: {row['question']} A:".encode(), f" {choice}".encode())
            for choice in row["choices"]
        ]
        hits.append(float(max(range(len(scores)), key=scores.__getitem__) == row["right"]))
    value, error = found["choosing"].metrics["acc"]
    mean = sum(hits) / 3
    assert value == pytest.approx(mean)
    assert error == pytest.approx(math.sqrt(mean * (1 - mean) / 2))
    texts = [row["question"].encode() for row in ROWS]
    total = sum(score(model, b"\0", text) for text in texts)
    expected = math.exp(-total / sum(map(len, texts)))
    assert found["reading"].metrics["byte_perplexity"][0] == pytest.approx(expected, rel=1e-5)
    assert found["writing"].metrics["exact_match"][0] == pytest.approx(2 / 3)


def test_an_unknown_task_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="expected a task, got 'choosings'; did you mean choosing"):
        find_stock_tasks(["reading", "choosings"])
    with pytest.raises(UsageError, match="got 'xyz'; `lm-eval ls tasks` lists all"):
        find_stock_tasks(["xyz"])


def test_what_cannot_be_evaluated_is_one_sentence(model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").unlink()
    manager = find_stock_tasks(["choosing"])
    with pytest.raises(UsageError, match="lm-eval cannot evaluate choosing: ") as caught:
        evaluate_stock_tasks(model, ByteTokenizer(), ["choosing"], manager)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="a tokenizer for any text"):
        evaluate_stock_tasks(model, CharacterTokenizer("abc"), ["choosing"], manager)


def test_files_of_a_folder_come_before_the_hub(model: LanguageModel, tmp_path: Path) -> None:
    """Of the questions, the second and the third are in the file."""
    names = ["choosing", "reading"]
    whole, other = _scores(model, names, None)
    files = tmp_path / "files"
    files.mkdir()
    lines = [json.dumps(row) for row in ROWS[1:]]
    (files / "choosing_test.jsonl").write_text("\n".join(lines))
    (files / "choosing_train.jsonl").write_text("no split of the task")
    local, same = _scores(model, names, files)
    assert (whole.documents, local.documents) == (3, 2)
    assert same == other
    (tmp_path / "rows.jsonl").unlink()
    (again,) = _scores(model, ["choosing"], files)
    assert again == local
    for damaged in ("not json", "[1, 2]", ""):
        (files / "choosing_test.jsonl").write_text(damaged)
        with pytest.raises(DamagedError, match=r"expected .* JSON .*choosing_test\.jsonl"):
            _scores(model, ["choosing"], files)


def _scores(model: LanguageModel, names: list[str], folder: Path | None) -> list[StockScore]:
    manager = find_stock_tasks(names)
    found = evaluate_stock_tasks(model, ByteTokenizer(), names, manager, folder=folder)
    return [found[name] for name in names]


def test_a_hub_without_an_answer_is_not_asked_again(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries would retry for more than a minute."""
    monkeypatch.setattr(stock_tasks, "find_hub_problem", lambda: "no route to host")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)

    class Manager:
        def load(self, _names: list[str]) -> None:
            assert datasets.config.HF_HUB_OFFLINE
            raise ConnectionError("Couldn't reach 'a/b' on the Hub")

    with pytest.raises(UsageError, match=r"boolq: .* \(no route to host\)$"):
        evaluate_stock_tasks(model, ByteTokenizer(), ["boolq"], Manager())  # type: ignore[arg-type]
    assert not datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), UsageError("of ours")])
def test_what_is_ours_is_not_blamed_on_the_hub(
    error: Exception, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(stock_tasks, "evaluate", fail)
    with pytest.raises(type(error)) as caught:
        evaluate_stock_tasks(model, ByteTokenizer(), ["choosing"], find_stock_tasks(["choosing"]))
    assert caught.value is error
    error = RuntimeError("a shape")
    with pytest.raises(UsageError, match=r"^lm-eval cannot evaluate choosing: a shape$"):
        evaluate_stock_tasks(model, ByteTokenizer(), ["choosing"], find_stock_tasks(["choosing"]))


def test_options_of_a_task_are_not_dropped(model: LanguageModel) -> None:
    lm: Any = NetworkLM(model, ByteTokenizer(), batch_size=1)
    options = {"until": [str(n) for n in range(65)]}
    request = SimpleNamespace(args=("a", options), task_name="mine")
    with pytest.raises(UsageError, match=r"at most 64 texts .*, got 65 in mine"):
        lm.generate_until([request])
    found = _sampling({"do_sample": True, "temperature": 0.5, "top_p": 0.3, "top_k": 7})
    assert found == Sampling(temperature=0.5, top_p=0.3, top_k=7)
