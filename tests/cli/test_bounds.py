"""Sizes that this machine has no memory for are refused in a sentence before they are built."""

from pathlib import Path

import pytest

from qkvary.storage import environment, untrusted_files
from qkvary.studies import timing
from tests.cli.tiny_training import command, tiny_places
from tests.conftest import Typed

RESOURCES = 4

tiny = pytest.fixture(tiny_places)


def refusal(typed: Typed, *words: object) -> str:
    """Return the only sentence of a refused command."""
    printed, said = typed.both(*words, code=RESOURCES)
    assert not printed
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    "words",
    [("--d-model", "10000000"), ("--vocabulary", "1000000000000"), ("--batch", "1000000000")],
)
def test_networks_to_measure(words: tuple[str, ...], typed: Typed) -> None:
    said = refusal(typed, "bench", "decode", *words)
    assert "iB of memory" in said
    assert "are free" in said


def test_a_checkpoint_to_measure(
    places: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refusal(typed, "bench", "decode", places / "rotary", "--batch", "1000000000")
    assert "of memory" in said
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: 1000)
    # Smaller files are read without looking.
    monkeypatch.setattr(untrusted_files, "MAX_SIDE_FILE_BYTES", 1000)
    said = refusal(typed, "generate", places / "rotary", "the")
    assert f"reading {places / 'rotary'}" in said
    assert "takes at least" in said


@pytest.mark.parametrize(
    "words", [("bench", "decode"), ("train", "lm-10m", "--dry-run"), ("study", "quickstart")]
)
def test_threads_and_workers(words: tuple[str, ...], typed: Typed) -> None:
    name = "workers" if "study" in words else "threads"
    said = refusal(typed, *words, f"--{name}", "100000")
    assert f"{name}: expected at most 1,024, got 100,000" in said


def test_windows_that_do_not_fit(
    places: Path, tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long").write_text("the cat sat on the mat. " * 9000, "utf-8")
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: 2**24)
    words = ("--data", tmp_path / "long", "--context=1M")
    said = refusal(typed, "evaluate", places / "rotary", *words)
    assert "scoring 1 window of 12" in said
    assert "or --context" in said


def test_a_training(tiny: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    # A plan times steps before it looks at memory.
    monkeypatch.setattr(timing, "estimate_language_seconds", lambda _run, _scored: 1.0)
    for words in (["--batch-size", "1000000000000"], ["--context", "1000000000"]):
        for plan in ((), ("--dry-run",)):
            said = typed.error(*command(tiny, *words, "--steps", "12", *plan), code=RESOURCES)
            assert "of memory, " in said
    assert not (tiny / "runs").exists()
