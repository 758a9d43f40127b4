"""A plan of a training reads what it is given, downloads nothing and writes nothing."""

import socket
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage import environment
from qkvary.studies import timing
from tests.cli.tiny_training import command, tiny_places
from tests.conftest import Typed

places = pytest.fixture(autouse=True)(tiny_places)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a connection fail the test, though downloads are allowed."""

    def refuse(*_arguments: object, **_options: object) -> Any:
        raise AssertionError("a plan connects to another machine")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.delenv("QKVARY_DATA", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_a_plan_of_a_text_writes_nothing(places: Path, typed: Typed, tokenizer: str) -> None:
    before, plan = sorted(places.rglob("*")), command(places, "--dry-run", "--tokenizer", tokenizer)
    planned = typed.json(*plan)
    assert sorted(places.rglob("*")) == before
    assert not planned["data"]["prepared"]
    (run,) = planned["runs"]
    assert (run["state"], run["directory"]) == ("open", None)

    typed(*command(places, "--tokenizer", tokenizer, "--steps", "1", "--batch-size", "4"))
    after = typed.json(*plan)
    assert after["data"] == {**planned["data"], "prepared": True}
    assert after["runs"][0]["parameters"] == run["parameters"]
    assert Path(after["runs"][0]["directory"]).parent.parent == places / "runs"


@pytest.mark.parametrize(
    ("words", "vocabulary"),
    [((), 50257), (("--tokenizer", "gpt2-4096"), 4096), (("--data", "hf:owner/name"), 50257)],
)
def test_a_plan_needs_no_network(
    places: Path,
    typed: Typed,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    vocabulary: int,
) -> None:
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: 2**50)
    monkeypatch.setattr(timing, "estimate_language_seconds", lambda _run, _scored: 86400.0)
    planned = typed.json("train", "lm-300m", "--dry-run", "--out", places / "runs", *words)
    assert planned["data"]["vocabulary"] == vocabulary
    (run,) = planned["runs"]
    assert run["estimated_seconds"] == 86400
    if vocabulary == 50257:
        cost, *_ = typed.json("cost", "lm-300m")["rows"]
        assert run["petaflops"] == 2 * cost["training_macs_per_token"] * run["tokens"] / 1e15
    assert not (places / "runs").exists()
    assert not (places / "cache").exists()


def test_what_cannot_be_known_without_the_documents_is_refused(places: Path, typed: Typed) -> None:
    call = ["train", "lm-300m", "--dry-run", "--data", "hf:owner/name", "--tokenizer", "characters"]
    said = typed.error(*call)
    assert "got hf:owner/name, a data set of the hub: prepare the data set first" in said
    assert "yours.txt" in typed.error(*command(places, "--dry-run", data="yours.txt"))
