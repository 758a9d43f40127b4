import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkvary.arch.canonical import canonical_json
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.tasks.contract import EvaluationContext, ProcessGroup
from qkvary.tasks.language import LanguageTask
from tests.tasks.tiny_networks import ALPHABET, SAYINGS, VALIDATION, tiny_network, tiny_task

SEPARATOR = 26
CONTEXT = 7


def make_task(**fields: Any) -> LanguageTask:
    config = tiny_task("language", length=CONTEXT)
    assert isinstance(config, LanguageTaskConfig)
    return LanguageTask(dataclasses.replace(config, **fields))


def make_model(task: LanguageTask) -> LanguageModel:
    return task.build(tiny_network("language"), 3).double().eval()


def tokens_of(texts: tuple[str, ...]) -> list[list[int]]:
    return [[*map(ALPHABET.index, text), SEPARATOR] for text in texts if text]


def losses(model: nn.Module, tokens: list[int]) -> list[float]:
    """The loss of every token of a window but the first, one by one."""
    logits = model(torch.tensor([tokens[:-1]]))[0]
    return [
        -logits[place].log_softmax(-1)[target].item() for place, target in enumerate(tokens[1:])
    ]


def score(task: LanguageTask, split: str = "test") -> dict[str, float]:
    with torch.no_grad():
        return task.evaluate(make_model(task), split)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "tokens"), [(1, None), (2, None), (16, 10**6), (16, CONTEXT + 1), (16, 5)]
)
def test_packed_windows_score_every_token_once(size: int, tokens: int | None) -> None:
    """Or the first tokens only."""
    task = make_task(evaluation_batch_size=size, validation_tokens=tokens)
    stream = [token for document in tokens_of(VALIDATION) for token in document]
    expected = [
        loss
        for start in range(0, len(stream) - 1, CONTEXT)
        for loss in losses(make_model(task), stream[start : start + CONTEXT + 1])
    ]
    assert len(expected) == len(stream) - 1
    expected = expected[:tokens]
    found = score(task, "validation")
    assert set(found) == {"loss", "perplexity", "bits_per_byte"}
    assert found["loss"] == pytest.approx(sum(expected) / len(expected), rel=1e-12)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-14)
    letters = sum(token != SEPARATOR for token in stream[1 : len(expected) + 1])
    bits = sum(expected) / math.log(2) / letters
    assert found["bits_per_byte"] == pytest.approx(bits, rel=1e-12)


def published(model: nn.Module, texts: tuple[str, ...]) -> tuple[list[float], list[float]]:
    """One document in each row, cut and padded: the losses of all targets, and of real ones."""
    everything: list[float] = []
    real: list[float] = []
    for document in tokens_of(texts):
        row = (document + [SEPARATOR] * CONTEXT)[: CONTEXT + 1]
        found = losses(model, row)
        everything += found
        real += found[: len(document) - 1]
    return everything, real


@pytest.mark.parametrize("protocol", ["packed", "padded-paper"])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_the_published_loss_counts_the_padding(protocol: str, size: int) -> None:
    task = make_task(protocol=protocol, evaluation_batch_size=size)
    everything, real = published(make_model(task), SAYINGS[::-1])
    found = score(task)
    assert len(real) < len(everything)
    assert found["paper_loss"] == pytest.approx(sum(everything) / len(everything), rel=1e-12)
    assert found["paper_perplexity"] == pytest.approx(math.exp(found["paper_loss"]), rel=1e-14)
    assert found["document_loss"] == pytest.approx(sum(real) / len(real), rel=1e-12)
    assert found["real_share"] == pytest.approx(len(real) / len(everything), rel=1e-15)
    assert (found["loss"] == found["document_loss"]) == (protocol == "padded-paper")


def test_training_on_padding_counts_it() -> None:
    task = make_task(protocol="padded-paper")
    every = {
        tuple((document + [SEPARATOR] * CONTEXT)[: CONTEXT + 1]) for document in tokens_of(SAYINGS)
    }
    batch = task.batch(0, 12, 0)
    assert batch.counted == batch.targets.numel()
    rows = torch.cat([batch.inputs, batch.targets[:, -1:]], dim=1)
    assert {tuple(row) for row in rows.tolist()} == every


def test_an_epoch_has_every_window_once() -> None:
    task = make_task()
    stream = [token for document in tokens_of(SAYINGS * 2) for token in document]
    rows = (len(stream) - 1) // CONTEXT
    windows = sorted(stream[CONTEXT * n : CONTEXT * n + CONTEXT] for n in range(rows))
    for epoch in (0, 1):
        found = [task.batch(rows * epoch + step, 1, 5).inputs[0].tolist() for step in range(rows)]
        assert sorted(found) == windows
        assert found != windows


def test_with_a_mask_scores_are_those_of_the_documents_alone() -> None:
    task = make_task(document_mask=True)
    stream = [(token, n) for n, document in enumerate(tokens_of(VALIDATION)) for token in document]
    model, expected = make_model(task), []
    for start in range(0, len(stream) - 1, CONTEXT):
        window = stream[start : start + CONTEXT + 1]
        for place in range(1, len(window)):
            seen = [token for token, number in window[:place] if number == window[place - 1][1]]
            logits = model(torch.tensor([seen]))[0, -1]
            expected.append(F.cross_entropy(logits, torch.tensor(window[place][0])).item())
    assert score(task, "validation")["loss"] == pytest.approx(
        sum(expected) / len(expected), rel=1e-12
    )


@pytest.mark.parametrize(("size", "protocol"), [(2, "packed"), (7, "padded-paper")])
def test_processes_share_the_scoring(size: int, protocol: str) -> None:
    task = make_task(protocol=protocol, evaluation_batch_size=2)

    class Recorder(ProcessGroup):
        def __init__(self, rank: int, size: int) -> None:
            self.rank, self.size = rank, size
            self.said: list[list[float]] = []

        def all_reduce(self, values: Sequence[float]) -> list[float]:
            self.said.append(list(values))
            return [1.0] * len(values)

    def reduced_by(processes: Recorder) -> tuple[list[list[float]], int]:
        """Return what a process reduced, and how often it ran the network."""
        runs: list[None] = []
        model = make_model(task)
        model.register_forward_hook(lambda *_arguments: runs.append(None))
        with torch.no_grad():
            task.evaluate(model, "test", EvaluationContext(processes=processes))
        return processes.said, len(runs)

    parts = [reduced_by(Recorder(rank, size)) for rank in range(size)]
    whole, _ = reduced_by(Recorder(0, 1))
    assert len({runs for _, runs in parts}) == 1
    for number, expected in enumerate(whole):
        total = [sum(values) for values in zip(*(said[number] for said, _ in parts), strict=True)]
        assert total == pytest.approx(expected, rel=1e-12)


def test_without_a_test_split_validation_is_tested(tmp_path: Path) -> None:
    task = make_task()
    task.data = dataclasses.replace(
        task.data, splits={name: task.data.splits[name] for name in ("train", "validation")}
    )
    assert score(task, "test")["loss"] == score(task, "validation")["loss"]
    task.data = dataclasses.replace(task.data, splits={"train": task.data.splits["train"]})
    with pytest.raises(UsageError, match=r"a data set with a split validation, got .* with train"):
        score(task, "validation")


def test_a_given_set_must_be_that_of_the_config() -> None:
    config = tiny_task("language")
    assert isinstance(config, LanguageTaskConfig)
    data = LanguageTask(config).data
    assert LanguageTask(config, data).data is data
    unknown = dataclasses.replace(config, data_sha256=None)
    with pytest.raises(ValueError, match="expected data_sha256"):
        LanguageTask(unknown, data)


def test_where_the_set_is_does_not_name_a_run() -> None:
    here = tiny_task("language")
    there = dataclasses.replace(here, data="/elsewhere")  # type: ignore[call-arg]
    assert canonical_json(here) != canonical_json(there)
    assert canonical_json(here, identity=True) == canonical_json(there, identity=True)
    other = dataclasses.replace(here, data_sha256="1" * 64)  # type: ignore[call-arg]
    assert canonical_json(here, identity=True) != canonical_json(other, identity=True)
    assert "data_sha256" in canonical_json(here, identity=True)
