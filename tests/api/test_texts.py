"""Texts continued and scored from Python, as the commands do."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import qkvary as qk
from qkvary.checkpoints.models import save_model
from qkvary.cli.main import main
from qkvary.data.tokenizers import ByteTokenizer
from tests.data.small_sets import make_set
from tests.inference.evaluation.networks import byte_network
from tests.inference.evaluation.task_files import write_task_files

PROMPTS = ["the cat", "on"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts")
    save_model(path / "model", byte_network("Q-K=V", max_tokens=64), ByteTokenizer())
    (path / "text.txt").write_text("the cat sat on the mat. " * 11, "utf-8")
    return path


def command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("sampled", [False, True])
def test_texts_are_those_of_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], *, sampled: bool
) -> None:
    options = ["--top-k", "7", "--seed", "3"] if sampled else []
    found = command(capsys, "generate", str(folder / "model"), *PROMPTS, "--tokens", "9", *options)
    expected = [answer["text"] for answer in found["answers"]]
    given = {"top_k": 7, "seed": 3} if sampled else {}
    texts = qk.generate(folder / "model", PROMPTS, tokens=9, **given)
    assert texts == expected
    network, tokenizer = qk.load(folder / "model")
    assert qk.generate((network, tokenizer), PROMPTS[0], tokens=9, **given) == expected[0]


def test_an_answer_ends_before_a_stop_text(folder: Path) -> None:
    whole = qk.generate(folder / "model", "the cat", tokens=9)
    assert len(whole) > 3
    stop = whole[2:4]
    assert qk.generate(folder / "model", "the cat", tokens=9, stop=stop) == whole.split(stop)[0]


def test_scores_are_those_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text = str(folder / "model"), folder / "text.txt"
    words = ("--data", str(text), "--context", "32", "--stride", "8", "--lengths", "16,64")
    found = command(capsys, "evaluate", model, *words)
    result = qk.evaluate(model, text, context=32, stride=8, lengths=[16, 64])
    assert result.to_dict() == found
    assert result.value.score.perplexity == found["text"]["perplexity"]
    assert result.to_pandas()["loss"].iloc[0] == found["text"]["loss"]
    assert result.tables == ("text", "lengths")
    assert "How well does the given network predict?" in str(qk.evaluate(qk.load(model), text))


def test_tasks_are_those_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(folder / "long", byte_network("Q-K=V", max_tokens=160), ByteTokenizer())
    write_task_files(folder / "tasks")
    model, files = str(folder / "long"), str(folder / "tasks")
    trained = str(make_set(folder / "trained", ("a text", "another text")).path)
    words = ("--task-data", files, "--fewshot", "1", "--limit", "2", "--against", trained)
    found = command(capsys, "evaluate", model, "--tasks", "piqa,lambada", *words)
    asked = {"task_data": files, "fewshot": 1, "limit": 2, "against": trained}
    result = qk.evaluate(model, tasks=["piqa", "lambada"], **asked)
    assert result.to_dict() == found
    assert result.value.scores["piqa"].accuracy.value == found["tasks"]["piqa"]["accuracy"]["value"]
    assert list(result.to_pandas()["task"]) == ["piqa", "lambada"]
    before = dict(os.environ)
    spaced = qk.evaluate(model, tasks="piqa, lambada", **asked)
    assert spaced.to_dict() == found
    assert dict(os.environ) == before
    assert capsys.readouterr().err == ""
    only = qk.evaluate(qk.load(model), tasks="piqa", task_data=files, fewshot=0, limit=1)
    assert only.value.scores["piqa"].documents == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "got neither"),
        ({"tasks": ()}, "expected tasks to ask, got none"),
        ({"tasks": "piqa", "limit": 0}, "expected limit of at least 1, got 0"),
        ({"tasks": "piqa", "task_data": 3}, "expected a folder of task files, got 3"),
    ],
)
def test_wrong_tasks_are_refused(folder: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qk.evaluate(folder / "model", **given)


def test_a_checkpoint_without_tokenizer_is_refused(folder: Path) -> None:
    network, _ = qk.load(folder / "model")
    with pytest.raises(ValueError, match="expected a checkpoint with a tokenizer, got one without"):
        qk.generate((network, None), "a")
    with pytest.raises(ValueError, match="expected a checkpoint with a tokenizer, or a prepared"):
        qk.evaluate((network, None), folder / "text.txt")
    with pytest.raises(ValueError, match="expected a checkpoint with a tokenizer, got one without"):
        qk.evaluate((network, None), tasks="piqa")
    with pytest.raises(ValueError, match="expected a text to score, got none"):
        qk.evaluate((network, None), [])
    with pytest.raises(ValueError, match="split out of train, validation, test, got 'dev'"):
        qk.evaluate(folder / "model", folder / "text.txt", split="dev")


def test_a_tokenizer_is_named_for_a_checkpoint_without_one(folder: Path) -> None:
    network, _ = qk.load(folder / "model")
    save_model(folder / "bare", network)
    loaded = qk.load(folder / "bare", tokenizer="bytes")
    texts = [qk.generate(one, "the cat", tokens=5) for one in (loaded, folder / "model")]
    assert texts[0] == texts[1]
    with pytest.raises(ValueError, match="which has its own, got bytes"):
        qk.load(folder / "model", tokenizer="bytes")
