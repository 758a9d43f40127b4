"""Texts continued and scored from Python, as the commands do."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import qkvary as qk
from qkvary.api.options import Terminal
from qkvary.checkpoints.models import save_model
from qkvary.data.tokenizers import ByteTokenizer
from tests.inference.evaluation.networks import byte_network
from tests.inference.evaluation.task_files import write_task_files

PROMPTS = ["the cat", "on"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts")
    save_model(path / "model", byte_network("Q-K=V", max_tokens=64), ByteTokenizer())
    (path / "text.txt").write_text("the cat sat on the mat. " * 11, "utf-8")
    return path


def test_texts_are_text_that_knows_its_tokens(folder: Path) -> None:
    loaded = qk.load(folder / "model")
    texts = qk.generate(folder / "model", PROMPTS, tokens=9, top_k=7, seed=3)
    assert texts == [qk.generate(loaded, one, tokens=9, top_k=7, seed=3) for one in PROMPTS]
    one = qk.generate(loaded, PROMPTS[0], tokens=9)
    (answer,) = one.result.value
    assert (answer.text, len(answer.tokens)) == (one, 9)
    assert one.result.to_dict()["tokens"] == list(answer.tokens)
    assert [found["prompt"] for found in texts.result.to_dict()["answers"]] == PROMPTS


def test_texts_are_shown_as_they_come(folder: Path) -> None:
    pieces: dict[int, str] = {}
    opened: list[object] = []

    def show(prompts: object) -> Callable[[int, str, bool], None]:
        opened.append(prompts)
        return lambda index, text, _ends: pieces.update({index: pieces.get(index, "") + text})

    texts = qk.generate(folder / "model", PROMPTS, tokens=9, terminal=Terminal(open_texts=show))
    assert opened == [PROMPTS]
    assert [pieces[0], pieces[1]] == texts


def _told() -> list[str | None]:
    """What a command tells the libraries of lm-eval, and a function does not."""
    return [os.environ.get(name) for name in ("HF_HUB_OFFLINE", "TQDM_DISABLE")]


def test_a_text_and_tasks_are_scored(folder: Path) -> None:
    save_model(folder / "long", byte_network("Q-K=V", max_tokens=160), ByteTokenizer())
    write_task_files(folder / "tasks")
    model, text, before = str(folder / "long"), folder / "text.txt", _told()
    asked = {"task_data": str(folder / "tasks"), "fewshot": 1, "limit": 2}
    scored = qk.evaluate(model, text, lengths=[16, 64])
    assert scored.to_pandas()["loss"].iloc[0] == scored.to_dict()["text"]["loss"]
    assert scored.tables == ("text", "lengths")
    answered = qk.evaluate(qk.load(model), tasks="piqa, lambada", **asked)
    assert list(answered.to_pandas()["task"]) == ["piqa", "lambada"]
    both = qk.evaluate(model, text, tasks=["piqa"], **asked)
    assert both.value[0].score.perplexity == scored.value.score.perplexity
    assert both.value[1].scores["piqa"].metrics == answered.value.scores["piqa"].metrics
    assert _told() == before
