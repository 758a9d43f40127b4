"""One run: claimed, trained, stopped and resumed, recorded; by a worker of a study too."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from qkvary.arch.canonical import to_dict
from qkvary.reports.study_results import gather_results
from qkvary.storage.errors import DamagedError, NoValidCheckpointError, ResourceError
from qkvary.studies.running.cells import CellOptions, execute_cell
from qkvary.studies.running.store import RunResult, Store
from qkvary.studies.running.training import train_cell
from qkvary.studies.study import Cell
from qkvary.text.names import slug
from qkvary.training.progress import Callbacks
from tests.studies.toy_study import stored_record, toy_study
from tests.training.recorded_tracker import Recorded

LONG = CellOptions(checkpoint_seconds=1e9)
STRICT = CellOptions(records_failures=False)


def newest(checkpoints: Path) -> str:
    steps = checkpoints.glob("step-*") if checkpoints.exists() else ()
    return max((path.name for path in steps), default="")


def test_a_run_that_is_stopped_leaves_a_checkpoint_and_no_record(tmp_path: Path) -> None:
    cell = toy_study([7]).cells()[0]
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 4

    end = execute_cell(Store(tmp_path), cell, train_cell, stop=stop, options=LONG)
    assert end.outcome == "stopped"
    folder = Store(tmp_path).directory(cell.run_key)
    assert newest(folder / "checkpoints") == "step-000000000004"


def test_damaged_checkpoints_are_quarantined_by_studies_only(
    tmp_path: Path,
) -> None:
    """A study starts such a run again; `qkvary train` leaves it unchanged."""
    (cell, *_) = toy_study([7], steps=160).cells()
    folder = Store(tmp_path).directory(cell.run_key)
    kept = folder / "checkpoints" / "step-000000000003"
    kept.mkdir(parents=True)
    tried: list[bool] = []

    def make(*_arguments: object, **_options: object) -> RunResult | None:
        tried.append(kept.is_dir())
        if kept.is_dir():
            raise NoValidCheckpointError("every checkpoint in some folder is damaged: of no use")
        return None

    warnings: list[str] = []
    callbacks = Callbacks(on_event=lambda event: warnings.append(event.warning))
    with pytest.raises(NoValidCheckpointError, match=f"; move {folder} away to start the run"):
        execute_cell(Store(tmp_path), cell, make, callbacks=callbacks, options=STRICT)
    assert kept.is_dir()
    assert warnings == []
    assert execute_cell(Store(tmp_path), cell, make, callbacks=callbacks).outcome == "stopped"
    assert tried == [True, True, False]
    (warning,) = warnings
    assert str(folder / "damaged-1") in warning
    assert (folder / "damaged-1" / "checkpoints" / kept.name).is_dir()

    def never_load(*_arguments: object, **_options: object) -> RunResult | None:
        raise NoValidCheckpointError("not after a restart either")

    with pytest.raises(NoValidCheckpointError, match="not after a restart either"):
        execute_cell(Store(tmp_path), cell, never_load)


def resume(root: Path, cell: Cell, steps: int) -> Path:
    """Resume a run for some steps, or to its end; return its folder."""
    asked = itertools.count()
    store = Store(root)
    execute_cell(store, cell, train_cell, stop=lambda: next(asked) >= steps, options=LONG)
    return store.directory(cell.run_key)


def test_the_page_says_that_a_log_lacks_steps(tmp_path: Path) -> None:
    study = toy_study([7], steps=60)
    (cell, *_) = study.cells()
    resume(tmp_path / "whole", cell, 1000)
    log = resume(tmp_path / "cut", cell, 45) / "metrics.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"loss":', b'"loss":1', 1))
    resume(tmp_path / "cut", cell, 1000)
    records = [stored_record(Store(tmp_path / name), cell.run_key) for name in ("whole", "cut")]
    whole, cut = (
        gather_results(study, Store(tmp_path / name)).summary for name in ("whole", "cut")
    )
    assert records[0].state_sha256 == records[1].state_sha256
    assert records[0].metrics == records[1].metrics
    assert records[0].environment["kernel"] in ("explicit", "sdpa")
    assert records[0].environment["instructions"]
    assert set(records[0].timing) == {
        "training_seconds",
        "evaluation_seconds",
        "total_seconds",
        "cpu_seconds",
        "steps_per_second",
    }
    (caveat,) = set(cut.caveats) - set(whole.caveats)
    assert caveat.startswith("The curves of 1 of 2 runs lack steps: ")


def test_a_run_stays_open_after_any_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints stay too: it starts again only if all of them are damaged."""
    study = toy_study([7], steps=160)
    (cell, *_) = study.cells()
    kept = Store(tmp_path).directory(cell.run_key) / "checkpoints" / "step-000000000003"
    kept.mkdir(parents=True)
    for error, options in (
        (DamagedError("train-00000.bin was changed"), CellOptions()),
        (ZeroDivisionError("by a person's mistake"), STRICT),
    ):
        make = Mock(side_effect=error)
        with pytest.raises(type(error)):
            execute_cell(Store(tmp_path), cell, make, options=options)
        make.assert_called_once()
        assert kept.is_dir()
        assert Store(tmp_path).state(cell.run_key) == "open"

    def refuse(path: Path, _data: bytes) -> None:
        raise ResourceError(f"cannot write {path}: No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr("qkvary.studies.running.store.atomic_write_file", refuse)
        with pytest.raises(ResourceError):
            execute_cell(Store(tmp_path), cell, make)
        assert Store(tmp_path).state(cell.run_key) == "open"
    assert Store(tmp_path).state(cell.run_key) == "open"
    execute_cell(Store(tmp_path), cell, make)
    assert Store(tmp_path).state(cell.run_key) == "done"


TRACKED = replace(LONG, tracker="trackio")


class Hanging(Recorded):
    """It never finishes, which the test shows by an error that nothing catches."""

    def finish(self) -> None:
        raise KeyboardInterrupt


def test_a_tracker_that_hangs_at_its_end_loses_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell, *_) = toy_study([7], steps=2).cells()
    monkeypatch.setitem(sys.modules, "trackio", Hanging("trackio"))
    with pytest.raises(KeyboardInterrupt):
        execute_cell(Store(tmp_path), cell, train_cell, options=TRACKED)
    assert Store(tmp_path).state(cell.run_key) == "done"


def test_the_log_of_a_run_is_copied_to_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell, *_) = toy_study([7], steps=20).cells()
    library = Recorded("trackio")
    monkeypatch.setitem(sys.modules, "trackio", library)
    options = replace(TRACKED, project="My Study")
    execute_cell(Store(tmp_path), cell, train_cell, options=options)
    begun, *logged, ended = library.calls
    assert begun[1:3] == ("my-study", f"{slug(cell.title)}-{cell.run_key[:8]}")
    assert begun[3] == to_dict(cell.run, identity=True)
    assert ended == ("finish",)
    curve = Store(tmp_path).log_events(cell.run_key)
    assert [step for _, _, step in logged] == [event["step"] for event in curve]
    losses = [values["train/loss"] for _, values, _ in logged if "train/loss" in values]
    assert losses == [event["loss"] for event in curve if event["event"] == "train"]
