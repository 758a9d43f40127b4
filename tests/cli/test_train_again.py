"""A training that was stopped, damaged or begun in another way, and its page at any time."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from qkvary.storage import environment
from qkvary.storage.durable import OwnerLock
from tests.cli.tiny_training import (
    LONG,
    command,
    digest,
    make_places,
    started,
    stop_early,
    tiny_places,
    train,
)
from tests.conftest import Typed

places = pytest.fixture(autouse=True)(tiny_places)


def test_a_finished_run_that_is_damaged_is_left_to_its_owner(places: Path, typed: Typed) -> None:
    """It may have taken days, and what is damaged may be a line of its log."""
    assert train(places) == 0
    before = digest(places / "runs")
    (path,) = (places / "runs").glob("*/*/metrics.jsonl")
    (run,) = (places / "runs").glob("[0-9a-f][0-9a-f]/*")
    data = path.read_bytes()
    flip(path, len(data) - 9)
    files = contents(run)
    for words in ((), ("--variant", "QKV", "Q-K=V")):
        shown = typed.error(*command(places, *words), code=3)
        assert len(shown.splitlines()) == 1
        assert f"{path} was changed: its sha256 is not the one in MANIFEST.json; restore" in shown
        assert f", or move {run} away to train the run again" in shown
        assert contents(run) == files
    path.write_bytes(data)
    assert train(places) == 0
    flip(path, len(data) - 9)
    run.rename(places / "away")
    assert train(places) == 0
    assert digest(places / "runs") == before


def contents(run: Path) -> dict[Path, bytes]:
    """The files of a run but for its lock and what a killed writer left."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != "run.lock")
    return {path: path.read_bytes() for path in files if ".tmp-" not in str(path)}


def flip(path: Path, position: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])


def test_a_run_that_was_begun_in_another_way_is_gone_on_with(places: Path, typed: Typed) -> None:
    stop_early(places, "--micro-batch-size", "4")
    (begun,) = (places / "runs").glob("[0-9a-f][0-9a-f]/*")
    another = command(places, "--micro-batch-size", "2", "--threads", "2")
    shown = typed.error(*another)
    assert "began with --micro-batch-size 4, --threads 1, and has reached step " in shown
    assert len(shown.splitlines()) == 1
    assert typed.error(*another, "--dry-run") == shown
    # So it is while another process trains that run.
    lock = OwnerLock(begun / "run.lock")
    assert typed.error(*another) == shown
    lock.release()
    assert "threads 2 (was 1)" in typed.error(*another, "--allow-change", code=0)
    assert list((places / "runs").glob("[0-9a-f][0-9a-f]/*")) == [begun]
    record = json.loads((begun / "record.json").read_text())
    changed = {"threads": [1, 2], "micro_batch_size": [4, 2]}
    assert record["environment"]["changed"] == changed
    events = [json.loads(line) for line in (begun / "metrics.jsonl").read_text().splitlines()]
    (resumed,) = [event for event in events if event["event"] == "resumed"]
    assert resumed["changed"] == changed
    # What is done is no reason to ask: the same in another way is another run.
    assert "has ended" not in typed.error(*another, code=0)
    # Either of the two that are done, by the order of their keys, is then the requested one.
    said = typed.error(*another[:-1], "1", "--allow-change", code=0)
    assert "began with --micro-batch-size 4, and" in said or "began with --threads 2, and" in said
    assert "has ended: the finished run is shown, not trained again" in said
    assert len(list((places / "runs").glob("*/*/record.json"))) == 2


SEVERAL = ("--variant", "QKV", "Q-K=V", "--threads", "2")


def test_the_runs_of_a_training_began_with_the_same_settings(places: Path, typed: Typed) -> None:
    stop_early(places)
    assert train(places, "--variant", "Q-K=V", "--threads", "2") == 0
    kept = sorted((places / "runs").glob("*/*/checkpoints/*/*"))
    for words in ((), ("--allow-change",)):
        shown = typed.error(*command(places, *SEVERAL, *words))
        assert len(shown.splitlines()) == 1
        assert "QKV@rotary seed 0 lr 0.001 with --threads 1" in shown
        assert "Q-K=V@rotary seed 0 lr 0.001 with --threads 2" in shown
        assert sorted((places / "runs").glob("*/*/checkpoints/*/*")) == kept != []
    assert train(places, *SEVERAL, "--anew") == 0
    assert len(list((places / "runs").glob("*/*/record.json"))) == 2


def test_the_others_of_a_training_begin_with_the_settings_of_the_first(
    places: Path, typed: Typed
) -> None:
    stop_early(places, "--variant", "QKV", "Q-K=V")
    assert "seed 0 lr 0.001 began with --threads 1" in typed.error(*command(places, *SEVERAL))
    for ended in (0, 2):
        shown = typed.error(*command(places, *SEVERAL, "--allow-change"), code=0)
        assert shown.count("has ended: the finished run is shown, not trained again") == ended
    assert len(list((places / "runs").glob("[0-9a-f][0-9a-f]/*"))) == 2


def test_the_same_text_may_have_another_name(places: Path, typed: Typed) -> None:
    stop_early(places)
    (places / "mine.txt").rename(places / "other.txt")
    shown = typed.error(*command(places, data="other.txt"), code=0)
    assert "resumed at step" in shown
    assert "was changed" not in shown


def test_what_is_done_is_shown_without_writing(
    places: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(places, "--variant", "QKV", "Q-K=V") == 0

    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (places / "runs").rglob("*")}

    before = times()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "files" not in typed.json(*command(places, "--variant", "Q-K=V"))
    # To train a run again, there would be too little memory.
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: 200_000)
    assert "files" not in typed.json(*command(places, "--variant", "Q-K=V"))
    (run,) = typed.json(*command(places, "--variant", "QKV", "--dry-run"))["runs"]
    assert run["state"] == "done"
    for words in ((), ("--dry-run",)):
        typed.error(*command(places, "--variant", "QKV", "MQA", *words), code=4)
    name = ("report", "train lm-tiny on mine", "--out", places / "runs")
    assert "is read-only, so no page is written" in typed.error(*name, code=0)
    assert times() == before
    assert str(places / "page") in typed(*name, "--to", places / "page")


def test_a_run_may_be_begun_anew_in_another_way(places: Path) -> None:
    stop_early(places)
    assert train(places, "--threads", "2", "--anew") == 0
    assert len(list((places / "runs").glob("*/*/checkpoints/step-*"))) >= 1
    assert len(list((places / "runs").glob("*/*/record.json"))) == 1
    # Now it is that run's own command, and the other one still waits for its.
    assert train(places, "--threads", "2") == 0
    assert train(places, "--threads", "1") == 0
    assert len(list((places / "runs").glob("*/*/record.json"))) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sample", "the " * 50), "expected a prompt of at most 16 tokens, the length"),
        (("--device", "cuda:99"), "expected a device of this machine, got 'cuda:99'"),
    ],
)
def test_what_cannot_be_done_takes_nothing_from_a_run(
    places: Path, typed: Typed, words: tuple[str, ...], message: str
) -> None:
    stop_early(places)
    more = (*words, "--allow-change") if "--device" in words else words
    kept = sorted((places / "runs").glob("*/*/checkpoints/*/*"))
    assert kept
    shown = typed.error(*command(places, *more))
    assert message in shown
    assert "Traceback" not in shown
    assert sorted((places / "runs").glob("*/*/checkpoints/*/*")) == kept
    assert not list((places / "runs").glob("*/*/record.json"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a training ends with that nobody stopped."""
    with pytest.MonkeyPatch.context() as patch:
        folder = make_places(tmp_path_factory.mktemp("whole"), patch)
        assert train(folder, *LONG) == 0
    return digest(folder / "runs")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_training_ends_as_one_that_was_not(
    places: Path, number: signal.Signals, whole: str
) -> None:
    stopped = started(places, "runs", *LONG, "--checkpoint-seconds", "0.01")
    while not list((places / "runs").glob("*/*/checkpoints/step-*/MANIFEST.json")):
        assert stopped.poll() is None, stopped.communicate()[1]
        time.sleep(0.005)
    stopped.send_signal(number)
    _out, err = stopped.communicate()
    expected = {signal.SIGKILL: -9, signal.SIGINT: 130}[number]
    assert stopped.returncode == expected, err
    assert ("interrupt again to stop at once" in err) == (number == signal.SIGINT)
    assert not list((places / "runs").glob("*/*/record.json"))
    assert train(places, *LONG) == 0
    assert digest(places / "runs") == whole


def test_the_page_of_a_training_can_be_made_again(places: Path, typed: Typed) -> None:
    assert train(places) == 0
    page = places / "runs" / "reports" / "train-lm-tiny-on-mine" / "report.html"
    expected = page.read_text()
    page.unlink()
    name, runs = "train lm-tiny on mine", ("--out", places / "runs")
    assert str(page) in typed("report", name, *runs)
    made = page.read_text()
    for text in ("QKV@rotary", "12 steps of 4 rows of 16 tokens: 768 tokens"):
        assert text in expected
        assert text in made
    # More of it belongs to it: one more variant, asked for later.
    assert train(places, "--variant", "Q-K=V", "--seed", "1") == 0
    html = (*runs, "--format", "html")
    summary = typed.json("report", name, *html)["summary"]
    assert summary["variants"] == ["QKV@rotary", "Q-K=V@rotary"]
    assert summary["seeds"] == [0, 1]
    assert (summary["counts"]["planned"], summary["counts"]["done"]) == (4, 2)
    again = f"qkvary report 'train lm-tiny on mine' --out {places / 'runs'}"
    assert summary["commands"][-1] == again
    summary = typed.json("report", name, *html, "--seeds", "0")["summary"]
    assert summary["counts"]["planned"] == 2
    counts = typed.json("status", name, *runs)["runs"]
    assert (counts["total"], counts["done"], counts["open"]) == (4, 2, 2)
    assert "2 of 4 runs in " in typed("pack", name, places / "packed.jsonl.xz", *runs)
    assert f"got 'x'; choices: {name}, ablations-quick, " in typed.error("report", "x", *runs)


def test_a_training_that_is_not_done_has_a_page(places: Path, typed: Typed) -> None:
    stop_early(places, "--variant", "QKV", "Q-K=V")
    words = ("train lm-tiny on mine", "--out", places / "runs", "--format", "html")
    found = typed.json("report", *words)
    counts = found["summary"]["counts"]
    assert (counts["planned"], counts["done"], counts["missing"]) == (2, 0, 2)
    curves = {one["quantity"]: one["steps"] for one in found["summary"]["curves"]}
    assert curves["train loss"]
    assert "over steps" in Path(found["files"][0]).read_text()
