"""A plan of a training reads what it is given, downloads nothing and writes nothing."""

import socket
from pathlib import Path
from typing import Any

import pytest

from qkvary.cli.main import main
from qkvary.storage import environment
from qkvary.studies import timing
from tests.cli.tiny_training import document, tiny_places, train

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


def plan(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
    assert train(folder, "--dry-run", "--json", *words) == 0
    return document(capsys)


@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_a_plan_of_a_text_writes_nothing(
    places: Path, capsys: pytest.CaptureFixture[str], tokenizer: str
) -> None:
    before = sorted(places.rglob("*"))
    planned = plan(capsys, places, "--tokenizer", tokenizer)
    assert sorted(places.rglob("*")) == before
    assert not planned["data"]["prepared"]
    (run,) = planned["runs"]
    assert (run["state"], run["directory"]) == ("open", None)

    assert train(places, "--tokenizer", tokenizer, "--steps", "1", "--batch-size", "4") == 0
    capsys.readouterr()
    after = plan(capsys, places, "--tokenizer", tokenizer)
    assert after["data"] == {**planned["data"], "prepared": True}
    assert after["runs"][0]["parameters"] == run["parameters"]
    assert Path(after["runs"][0]["directory"]).parent.parent == places / "runs"


@pytest.mark.parametrize(
    ("words", "vocabulary"),
    [((), 50257), (("--tokenizer", "gpt2-4096"), 4096), (("--data", "hf:owner/name"), 50257)],
)
def test_a_plan_needs_no_network(
    places: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    vocabulary: int,
) -> None:
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: 2**50)
    monkeypatch.setattr(timing, "estimate_language_seconds", lambda _run, _scored: 86400.0)
    call = ["train", "lm-300m", "--dry-run", "--json", "--out", str(places / "runs"), *words]
    assert main(call) == 0
    planned = document(capsys)
    assert planned["data"]["vocabulary"] == vocabulary
    assert planned["runs"][0]["estimated_seconds"] == 86400
    assert not (places / "runs").exists()
    assert not (places / "cache").exists()


def test_what_cannot_be_known_without_the_documents_is_refused(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["train", "lm-300m", "--dry-run", "--data", "hf:owner/name", "--tokenizer", "characters"]
    assert main(call) == 2
    assert "expected a text on this machine for the alphabet of a plan" in capsys.readouterr().err
    assert train(places, "--dry-run", data="yours.txt") == 2
    assert "yours.txt" in capsys.readouterr().err
