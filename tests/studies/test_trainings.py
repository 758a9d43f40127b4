"""Notes of trainings: what is one training, which one is meant, and what is said of a bad note."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qkvary.data.prepared_sets import PlannedSet
from qkvary.storage.durable import make_directory
from qkvary.storage.errors import DamagedError, NewerFormatError, UsageError
from qkvary.storage.journal import Journal
from qkvary.studies.running.store import JOURNAL_NAME, Store
from qkvary.studies.study import Study
from qkvary.studies.training_study import TrainingOptions, training_study
from qkvary.studies.trainings import NOTES, find_group, find_training, list_trainings, note_training
from qkvary.training.presets import find_preset
from tests.data.small_sets import empty_set
from tests.studies.toy_study import claim_cell

DATA = PlannedSet.of(empty_set("some", "train", "validation"))
NAME = "train lm-10m on some"


def plan(*variants: str, seeds: tuple[int, ...] = (0,), steps: int = 7) -> Study:
    preset = find_preset("lm-10m")
    return training_study(
        preset, DATA, variants=variants, seeds=seeds, options=TrainingOptions(steps=steps)
    )


def begin(store: Store, study: Study) -> None:
    """Log the first step of its first run."""
    (cell, *_) = study.cells()
    claim = claim_cell(store, cell)
    journal = Journal(claim.directory / JOURNAL_NAME, b"")
    journal.append({"event": "train", "step": 1, "loss": 1.0, "seconds": 0.1})
    journal.close()
    claim.release()


def note_on(store: Store, study: Study, day: int) -> None:
    before = set((store.path / NOTES).glob("*"))
    note_training(store, study, f"command {day}")
    (path,) = set((store.path / NOTES).iterdir()) - before
    note = json.loads(path.read_text())
    path.write_text(json.dumps({**note, "noted": f"2030-01-0{day}"}))


def test_a_note_gives_back_the_study(tmp_path: Path) -> None:
    store, study = Store(tmp_path), plan("QKV", "Q-K=V", seeds=(3, 5))
    note_training(store, study, "qkvary train lm-10m")
    found = find_training(store, NAME)
    assert (found.study, found.commands) == (study, ("qkvary train lm-10m",))
    (path,) = (tmp_path / NOTES).iterdir()
    before = path.read_bytes()
    note_training(store, study, "qkvary train lm-10m --sample x")
    assert [one.read_bytes() for one in (tmp_path / NOTES).iterdir()] == [before]


@pytest.mark.parametrize("first", ["QKV", "I-K-V"])
def test_more_variants_and_seeds_are_the_same_training(tmp_path: Path, first: str) -> None:
    store = Store(tmp_path)
    parts = (plan(first, seeds=(4,)), plan("Q-K=V", seeds=(4, 2)), plan("MQA", first, seeds=(4,)))
    for day, study in enumerate(parts, start=1):
        note_on(store, study, day)
    found = find_training(store, NAME)
    assert found.study.variants == (f"{first}@rotary", "Q-K=V@rotary", "MQA@rotary")
    assert found.study.seeds == (4, 2)
    assert found.commands == ("command 1", "command 2", "command 3")
    keys = {cell.run_key for cell in found.study.cells()}
    assert all(cell.run_key in keys for study in parts for cell in study.cells())


def test_other_runs_of_the_same_name_are_another_training(tmp_path: Path) -> None:
    store, short, long = Store(tmp_path), plan("QKV"), plan("Q-K=V", steps=11)
    for study in (short, long):
        note_training(store, study, f"qkvary train {study.variants[0]}")
    newest = find_training(store, NAME)
    assert newest.study == long
    # What was never begun is no older training.
    assert newest.describe_older() == ()
    for one in list_trainings(store):
        assert find_training(store, one.notes[0]).study == one.study
    # Only one of them was begun: the other was refused, or is still to come.
    begin(store, short)
    assert find_training(store, NAME).study == short
    begin(store, long)
    newest = find_training(store, NAME)
    assert newest.study == long
    (older,) = newest.describe_older()
    assert older.startswith("train-lm-10m-on-some-")
    assert f"{short.settings[0].training.steps} steps, QKV@rotary: `qkvary train QKV" in older


def test_a_younger_training_of_the_same_name_has_a_page_of_its_own(tmp_path: Path) -> None:
    store, older, younger = Store(tmp_path), plan("QKV"), plan("QKV", steps=11)
    for day, study in enumerate((older, younger), start=1):
        note_on(store, study, day)
    (_, second) = list_trainings(store)
    # One that was refused before its first step has no page.
    begin(store, younger)
    assert find_group(store, younger).page_name == NAME
    begin(store, older)
    assert find_group(store, older).page_name == NAME
    # More seeds of a training are on its page.
    more = replace(younger, seeds=(0, 5))
    note_on(store, more, 3)
    assert find_group(store, more) == find_group(store, younger)
    assert find_group(store, more).page_name == second.notes[0]


def test_no_training(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    with pytest.raises(
        UsageError, match="got 'train x on y'; the store has no trainings: run `qkvary train`"
    ):
        find_training(store, "train x on y")
    assert list_trainings(store) == ()
    assert not store.path.exists()
    # What a process leaves that is killed while it writes a note.
    make_directory(store.path / NOTES)
    (store.path / NOTES / ".tmp-1-0-train-a.json").write_bytes(b"")
    assert list_trainings(store) == ()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"format": 2},
            NewerFormatError,
            "has format 2, but this qkvary reads only 1; use a newer qkvary",
        ),
        ({"study": {}}, DamagedError, "is not a note that describes a training: expected the keys"),
        (
            {"noted": None, "study": {"seeds": "x"}},
            DamagedError,
            "is not a note that describes a training: ",
        ),
        (None, DamagedError, "is not a note that describes a training: "),
    ],
)
def test_a_note_that_was_changed(
    tmp_path: Path, change: dict[str, object] | None, error: type[Exception], message: str
) -> None:
    store = Store(tmp_path)
    note_training(store, replace(plan("QKV"), name="train a"), "")
    (path,) = (tmp_path / NOTES).iterdir()
    note = json.loads(path.read_text())
    path.write_text("{" if change is None else json.dumps({**note, **change}))
    with pytest.raises(error, match=message) as caught:
        find_training(store, "train a")
    assert str(path) in str(caught.value)
