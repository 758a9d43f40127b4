"""One command from a text to a network: trained, stopped, resumed, shown, continued."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from qkvary.data import preparation
from qkvary.data.prepared_sets import prepare_source
from qkvary.reports.report import DEFAULT_FORMATS
from qkvary.storage.errors import BusyError
from tests.cli.tiny_training import TINY, command, tiny_places
from tests.conftest import Typed

places = pytest.fixture(autouse=True)(tiny_places)


def test_a_text_becomes_a_network_that_can_be_asked(
    places: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkvary.reports.files.DEFAULT_FORMATS", DEFAULT_FORMATS)
    shown, said = typed.both(*command(places, "--sample", "the ", "--log", "tensorboard"))
    for step in (5, 10, 12):
        assert f"step {step}: validation loss " in said
        assert f"step {step}: the " in said
    assert "one document per row" in shown
    assert list((places / "runs" / "logs" / "tensorboard").rglob("events.out.tfevents.*"))
    page = places / "runs" / "reports" / "train-lm-tiny-on-mine" / "report.html"
    assert page.is_file()
    assert str(page) in shown
    written = {path.suffix for path in page.parent.rglob("*.*")}
    assert written == {".html", ".md", ".csv", ".svg", ".png", ".pdf"}
    *_, network, following = shown.strip().splitlines()
    answer = typed("generate", network.partition(": ")[2], "the quick", "--tokens", "5")
    assert answer.startswith("the quick")
    title, _, suggested = following.partition(": ")
    program, *words = shlex.split(suggested)
    assert (title, program) == ("next", "qkvary")
    typed(*words, "--tokens", "3")


def test_a_plan_trains_nothing(places: Path, typed: Typed) -> None:
    (run,) = typed.json(*command(places, "--dry-run", "--variant", "MQA"))["runs"]
    assert (run["variant"], run["state"], run["tokens"]) == ("MQA@rotary", "open", 12 * 4 * 16)
    # Two layers, key and value of one head of 16 channels, two bytes each, as in the papers.
    assert run["cache_bytes_per_token"] == 2 * 2 * 16 * 2
    assert not (places / "runs").exists()
    layers = "I-K-V*1,Q-K=V*1"
    (run,) = typed.json(*command(places, "--dry-run", "--variant", layers))["runs"]
    assert run["variant"] == "I-K-V@rotary*1,Q-K=V@rotary*1"
    said = typed.error(*command(places, "--dry-run", "--variant", "QKV*3,MQA*1"))
    assert "for the 2 layers of the network, got 4" in said
    shown = typed(*command(places, "--dry-run"))
    assert "12 steps of 4 rows of 16 tokens: 768 tokens" in shown


def test_a_text_shorter_than_a_row_is_refused_before_a_note_is_written(
    places: Path, typed: Typed
) -> None:
    (places / "short.txt").write_text("shorter")
    # Before the text is prepared, each byte may be a document, which adds a token.
    for words, most in ((["--dry-run"], 14), ([], 7), (["--tokenizer", "characters"], 7)):
        said = typed.error(*command(places, *words, data="short.txt"))
        assert "longer than one row of 16 tokens, got short" in said
        assert f"which has at most {most} tokens: give a longer text" in said
    assert not (places / "runs").exists()


def test_a_text_that_another_process_prepares_is_waited_for(
    places: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [BusyError("the set is in use by process 7")] * 2

    def prepare(*given: Any, **named: Any) -> object:
        if refusals:
            raise refusals.pop()
        return preparation.prepare(*given, **named)

    monkeypatch.setattr("qkvary.data.prepared_sets.prepare", prepare)
    monkeypatch.setattr("qkvary.api.train.BUSY_SECONDS", 0.0)
    shown, said = typed.both(*command(places))
    assert said.count("in use by process 7") == 1
    assert "QKV@rotary" in shown


def test_a_prepared_set_is_taken_as_it_is(places: Path, typed: Typed) -> None:
    data = prepare_source(str(places / "mine.txt"), "characters", out=places / "set")
    planned = typed.json(*command(places, "--dry-run", data="set"))
    assert planned["task"]["data_sha256"] == data.fingerprint
    said = typed.error(*command(places, "--tokenizer", "bytes", data="set"))
    assert "expected no --tokenizer with a prepared set" in said


@pytest.mark.parametrize(("words", "expected"), [((), 5), (("--device", "cuda"), 1)])
def test_all_usable_cores_are_used(
    places: Path,
    typed: Typed,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    expected: int,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(5))
    monkeypatch.delenv("OMP_NUM_THREADS")
    text = ("--data", places / "mine.txt", "--out", places / "runs")
    planned = typed.json("train", "lm-tiny", *text, *TINY, "--dry-run", *words)
    assert planned["threads"] == expected
    # torchrun may start a single process, too.
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert typed.json("train", "lm-tiny", *text, *TINY, "--dry-run", *words) == planned
    said = typed.error("train", "lm-tiny", *text, *TINY, "--strategy", "fsdp")
    assert "expected several processes for --strategy fsdp, got one" in said
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    planned = typed.json("train", "lm-tiny", *text, *TINY, "--dry-run", *words)
    assert planned["threads"] == min(expected, 3)


def test_a_device_that_is_not_here_is_refused_first(places: Path, typed: Typed) -> None:
    absent = command(places, "--device", "cuda:99")
    assert "expected a device of this machine" in typed.error(*absent)
    assert {path.name for path in places.iterdir()} == {"mine.txt"}
    _, said = typed.both(*absent, "--dry-run")
    assert "this machine cannot run this training: expected a device of this machine" in said
    typed(*command(places))
    assert "expected a device of this machine" in typed.error(*absent)
    assert len(list((places / "runs" / "trainings").iterdir())) == 1


def test_a_loss_that_is_not_finite_exits_with_5(places: Path, typed: Typed) -> None:
    words = command(places, "--learning-rate", "1e30")
    said = typed.error(*words, code=5)
    assert "diverged: " in said
    assert "the earlier weights were kept" in said
    (kept,) = (places / "runs").glob("*/*/checkpoints")
    assert len(list(kept.iterdir())) >= 1
    # Found as it was left.
    typed(*words, code=5)
