import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from qkvary.training.loop import train
from qkvary.training.progress import Callbacks
from qkvary.training.trackers import LogCopy, TrackedRun
from tests.training.recorded_tracker import Recorded
from tests.training.test_loop import after, log
from tests.training.toy import ToyTask, toy_run

pytestmark = pytest.mark.filterwarnings("default:.*:DeprecationWarning")


def copy_to(tracker: Any, folder: Path, warn: Callable[[str], None] = pytest.fail) -> LogCopy:
    run = TrackedRun(project="study", name="run-0123abcd", config={"a": {"b": 1}}, folder=folder)
    return LogCopy(tracker, run, warn)


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


@pytest.mark.parametrize("steps", [20, 7])
def test_the_copy_shows_what_the_log_has_also_after_a_stop(steps: int, tmp_path: Path) -> None:
    """Also where the last step before the stop was logged, or scored."""
    for stop in (after(steps), after(100)):
        copy = copy_to("tensorboard", tmp_path)
        callbacks = Callbacks(on_log=copy.log, sample=lambda _n: "hm")
        train(toy_run(), ToyTask(), tmp_path, stop=stop, callbacks=callbacks)
        copy.close()
    for event, name in (("train", "loss"), ("validation", "accuracy"), ("train", "gradient_norm")):
        expected = [(entry["step"], entry[name]) for entry in log(tmp_path, event)]
        found = curve(tmp_path / "tensorboard/study/run-0123abcd", f"{event}/{name}")
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [value for _, value in found] == pytest.approx([v for _, v in expected], rel=1e-6)
    said = [entry["text"] for entry in log(tmp_path, "sample")]
    assert said == ["hm"] * 4


ENTRIES: list[dict[str, Any]] = [
    {"event": "resumed", "step": 3, "changed": {"device": ["cpu", "cuda"]}},
    {"event": "train", "step": 4, "loss": 0.5, "flag": None},
    {"event": "sample", "step": 4, "text": "hm"},
]


@pytest.mark.parametrize(
    ("tracker", "options"),
    [("trackio", {}), ("wandb", {"id": "run-0123abcd", "dir": "{folder}"})],
)
def test_a_library_gets_one_init_every_entry_and_one_finish(
    tracker: Any,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    library = Recorded(tracker)
    monkeypatch.setitem(sys.modules, tracker, library)
    copy = copy_to(tracker, tmp_path)
    for entry in ENTRIES:
        copy.log(entry)
    copy.close()
    copy.close()
    given = {name: value.format(folder=tmp_path) for name, value in options.items()}
    begun = ("init", "study", "run-0123abcd", {"a": {"b": 1}}, {"resume": "allow", **given})
    assert library.calls == [
        begun,
        ("log", {}, 3),
        ("log", {"train/loss": 0.5}, 4),
        ("log", {"sample/text": "hm"}, 4),
        ("finish",),
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("broken", "error"),
    [("init", SystemExit), ("log", ConnectionError), ("finish", SystemExit)],
)
def test_a_tracker_that_fails_ends_the_copy_and_not_the_run(
    broken: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, said = Recorded("wandb", broken=broken, error=error), list[str]()
    monkeypatch.setitem(sys.modules, "wandb", library)
    copy = copy_to("wandb", tmp_path, said.append)
    callbacks = Callbacks(on_log=copy.log)
    assert train(toy_run(), ToyTask(), tmp_path, callbacks=callbacks).status == "done"
    copy.close()
    assert said == [f"stopped copying the log to wandb: {error.__name__}: no network"]


@pytest.mark.cluster
def test_trackio_holds_what_the_log_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for stop in (after(7), after(100)):
        copy = copy_to("trackio", tmp_path)
        train(toy_run(), ToyTask(), tmp_path, stop=stop, callbacks=Callbacks(on_log=copy.log))
        copy.close()
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("study", "run-0123abcd")
    found = {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}
    expected = {entry["step"]: entry["loss"] for entry in log(tmp_path, "train")}
    assert found == pytest.approx(expected)
