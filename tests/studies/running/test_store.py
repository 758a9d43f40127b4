"""The store: claims, finished runs and damaged folders."""

import dataclasses
import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from qkvary.storage import durable
from qkvary.storage.durable import OwnerLock
from qkvary.storage.errors import BusyError, DamagedError, NewerFormatError, UnsafeError
from qkvary.storage.journal import Journal
from qkvary.storage.manifest import describe
from qkvary.studies import records
from qkvary.studies.records import Record
from qkvary.studies.running import store as store_module
from qkvary.studies.running.store import Claim, Store
from qkvary.tasks.example_files import maps_from_bytes
from tests.storage.damage import DAMAGES, trials
from tests.studies.toy_study import toy_study
from tests.studies.toy_worker import finished

CELL = toy_study([5]).cells()[0]
KEY = CELL.run_key
IDENTITY = CELL.run.identity()


def claim(store: Store, **options: Any) -> Claim:
    taken = store.claim(IDENTITY, **options)
    assert taken
    return taken


def finish(taken: Claim) -> Record:
    journal = Journal(taken.directory / "metrics.jsonl", b"")
    for step in range(20):
        journal.append({"event": "train", "step": step, "loss": 1 / (step + 1)})
    journal.close()
    made = finished(CELL, "0123456789abcdef" * 4)
    taken.finish(made)
    return made.record


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def names(store: Store) -> list[str]:
    return sorted(path.name for path in store.directory(KEY).iterdir())


def test_a_store_that_is_not_there_is_empty(store: Store) -> None:
    assert store.state(KEY) == "open"
    assert store.record(KEY) is None
    assert store.log_events(KEY) == []
    assert store.file(KEY, "attention.safetensors") is None
    assert store.find_damage(KEY) is None
    assert store.owner(KEY) is None
    assert store.keys() == ()
    assert not store.path.exists(), "looking leaves nothing behind"


def test_from_open_to_done(store: Store) -> None:
    taken = claim(store)
    assert store.state(KEY) == "running"
    owner = store.owner(KEY)
    assert owner
    assert owner.pid == os.getpid()
    with pytest.raises(BusyError, match=f"in use by process {os.getpid()} on"):
        store.claim(IDENTITY)
    assert store.record(KEY) is None
    record = finish(taken)
    assert store.state(KEY) == "done"
    assert store.owner(KEY) is None
    assert store.record(KEY) == record
    assert [event["step"] for event in store.log_events(KEY)] == list(range(20))
    attention = maps_from_bytes(store.file(KEY, "attention.safetensors") or b"")
    assert (attention.tokens, attention.targets) == (("a", "b"), (1, None))
    assert store.keys() == (KEY,)
    assert names(store) == [
        "MANIFEST.json",
        "attention.safetensors",
        "config.json",
        "metrics.jsonl",
        "record.json",
        "run.lock",
    ]
    assert store.claim(IDENTITY) is None


def test_what_was_done_so_far_stays(store: Store) -> None:
    taken = claim(store)
    journal = Journal(taken.directory / "metrics.jsonl", b"")
    journal.append({"event": "train", "step": 1})
    journal.close()
    taken.release()
    assert [event["step"] for event in store.log_events(KEY)] == [1]
    again = claim(store)
    assert again.warnings == ()
    checkpoint = again.directory / "checkpoints" / "step-000000000001"
    checkpoint.mkdir(parents=True)
    place = again.restart()
    assert store.log_events(KEY) == []
    assert names(store) == ["config.json", "damaged-1", "run.lock"]
    assert place == again.directory / "damaged-1"
    assert (place / "checkpoints" / checkpoint.name).is_dir()
    assert (place / "metrics.jsonl").stat().st_size > 0
    again.release()


def test_a_finished_run_can_be_repeated(store: Store) -> None:
    finish(claim(store))
    version = store.version(KEY)
    assert version is not None
    assert store.claim(IDENTITY, again=version - 1) is None
    again = store.claim(IDENTITY, again=version)
    assert again is not None
    assert again.warnings == ()
    assert store.version(KEY) is None
    assert store.record(KEY) is None
    assert names(store) == ["config.json", "run.lock"]
    finish(again)


def test_a_crash_between_manifest_and_record_leaves_the_run_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = durable.atomic_write_file

    def crash(path: Path, data: bytes) -> None:
        if path.name == "record.json":
            raise KeyboardInterrupt
        write(path, data)

    taken = claim(store)
    with monkeypatch.context() as patch:
        patch.setattr("qkvary.studies.running.store.atomic_write_file", crash)
        with pytest.raises(KeyboardInterrupt):
            finish(taken)
    taken.release()
    assert store.state(KEY) == "open"
    again = claim(store)
    assert "record.json is missing; the run is resumed" in again.warnings[0]
    assert names(store) == ["config.json", "metrics.jsonl", "run.lock"]
    finish(again)
    assert store.find_damage(KEY) is None


def test_a_changed_configuration_is_named_and_written_again(store: Store) -> None:
    claim(store).release()
    path = store.directory(KEY) / "config.json"
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"seed": 5', b'"seed": 6'))
    taken = claim(store)
    assert taken.warnings == (f"{path} was changed; it is rewritten",)
    assert path.read_bytes() == before


def silent_damages(store: Store, spare: Path, count: int) -> list[str]:
    """Damages of a finished run after which the store gives a wrong or an empty answer."""
    record = finish(claim(store))
    expected = (record, store.log_events(KEY), store.file(KEY, "attention.safetensors"))
    shutil.copytree(store.directory(KEY), spare)
    missed: list[str] = []
    for seed in range(count):
        generator = random.Random(seed)
        shutil.rmtree(store.directory(KEY))
        shutil.copytree(spare, store.directory(KEY))
        files = [path for path in store.directory(KEY).iterdir() if path.name != "run.lock"]
        path = generator.choice(sorted(files))
        damage = DAMAGES[seed % len(DAMAGES)]
        damage(path, generator)
        if not named_and_open(store, path, expected):
            missed.append(f"{damage.__name__} of {path.name}, seed {seed}")
    return missed


def named_and_open(store: Store, path: Path, expected: tuple[Any, ...]) -> bool:
    problem = store.find_damage(KEY)
    maps = partial(store.file, name="attention.safetensors")
    for read, answer in zip((store.record, store.log_events, maps), expected, strict=True):
        try:
            if read(KEY) != answer and not (read(KEY) is None and store.state(KEY) == "open"):
                return False
        except DamagedError:
            pass
    taken = store.claim(IDENTITY)
    if taken is None:
        return False
    named = problem or " ".join(taken.warnings)
    reopened = store.state(KEY) == "running" and store.record(KEY) is None
    taken.release()
    return reopened and str(path.parent) in named and bool(taken.warnings)


def test_no_damage_is_silent(store: Store, tmp_path: Path) -> None:
    """Damage is named, and the run is open again; the wrong answer is never given."""
    assert silent_damages(store, tmp_path / "spare", trials("DAMAGES", 100)) == []


@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_the_files_of_a_damaged_run_are_kept(store: Store, has_checkpoints: bool) -> None:
    """A diverged run has checkpoints, and resumes from them with its log."""
    taken = claim(store)
    network = {"MANIFEST.json": describe({}).to_json()}
    durable.atomic_write_dir(taken.directory / "network", network)
    finish(taken)
    files = {path.name: path.read_bytes() for path in taken.directory.iterdir() if path.is_file()}
    (taken.directory / "attention.safetensors").write_bytes(b"?")
    if has_checkpoints:
        (taken.directory / "checkpoints").mkdir()
    again = claim(store)
    place = taken.directory / "damaged-1"
    assert again.warnings[0].endswith(f"the run is repeated, and the damaged files are in {place}")
    moved = ["MANIFEST.json", "attention.safetensors", "network", "record.json"]
    left = ["config.json", "damaged-1", "run.lock"]
    if has_checkpoints:
        left = sorted([*left, "checkpoints", "metrics.jsonl"])
    else:
        moved = sorted([*moved, "metrics.jsonl"])
    assert sorted(path.name for path in place.iterdir()) == moved
    assert names(store) == left
    assert (place / "record.json").read_bytes() == files["record.json"]
    assert (place / "network" / "MANIFEST.json").is_file()
    again.release()


def test_a_swap_of_two_runs_is_noticed(store: Store) -> None:
    finish(claim(store))
    other = "f" * 64
    shutil.copytree(store.directory(KEY), store.directory(other))
    with pytest.raises(DamagedError, match="holds the record of another run"):
        store.record(other)


def test_a_newer_schema_is_neither_read_nor_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, "FORMAT", dataclasses.replace(records.FORMAT, version=2))
        finish(claim(store))
    for look in (
        store.record,
        store.find_damage,
        lambda _: store.claim(IDENTITY),
    ):
        with pytest.raises(
            NewerFormatError, match="schema_version 2, but this qkvary reads only 1"
        ):
            look(KEY)
    assert store.state(KEY) == "done"
    OwnerLock(store.directory(KEY) / "run.lock").release()


@pytest.mark.parametrize(
    "key", ["", "..", "../../etc", "A" * 64, "f" * 63, "f" * 65, "f" * 64 + "/"]
)
def test_what_is_no_key_never_becomes_a_path(store: Store, key: str) -> None:
    with pytest.raises(UnsafeError, match="expected a run key of 64"):
        store.directory(key)


@pytest.mark.parametrize("status", ["done", "diverged"])
def test_a_diverged_run_keeps_its_checkpoints(store: Store, status: Any) -> None:
    taken = claim(store)
    checkpoint = taken.directory / "checkpoints" / "step-000000000007"
    checkpoint.mkdir(parents=True)
    made = finished(CELL, "0123456789abcdef" * 4)
    record = dataclasses.replace(made.record, status=status)
    taken.finish(dataclasses.replace(made, record=record))
    assert checkpoint.is_dir() == (status == "diverged")
    with pytest.MonkeyPatch.context() as patch:
        read = Mock(wraps=store_module.read_manifest)
        patch.setattr(store_module, "read_manifest", read)
        assert store.find_damage(KEY) is None
        assert store.is_clean(KEY)
    assert read.call_count == (2 if status == "diverged" else 1)
    # What a process leaves that is killed while it removes checkpoints.
    left = taken.directory / ".tmp-1-0-checkpoints"
    left.mkdir()
    assert store.is_clean(KEY) == (status == "diverged")
    assert store.claim(IDENTITY) is None
    assert left.is_dir() == (status == "diverged")
    assert checkpoint.is_dir() == (status == "diverged")
    again = store.claim(IDENTITY, again=store.version(KEY))
    assert again is not None
    again.release()
    assert not checkpoint.exists(), "a run that is made again begins at its beginning"
