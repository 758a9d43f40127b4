"""Packed runs: what was packed comes back byte for byte, and damage is noticed."""

import lzma
import random
from dataclasses import replace
from pathlib import Path

import pytest

from qkvary.storage.errors import BusyError, DamagedError
from qkvary.storage.journal import Journal, from_line, to_line
from qkvary.studies.running.run_archive import EXTRAS, Extra, pack_runs, unpack_runs
from qkvary.studies.running.store import Store
from tests.studies.toy_study import claim_cell, toy_study
from tests.studies.toy_worker import finished

CELLS = toy_study([5, 6, 7]).cells()
KEYS = [cell.run_key for cell in CELLS]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """All runs but the last are finished."""
    store = Store(tmp_path / "runs")
    for number, cell in enumerate(CELLS[:-1]):
        claim = claim_cell(store, cell)
        journal = Journal(claim.directory / "metrics.jsonl", b"")
        for step in range(3 + number):
            journal.append({"event": "train", "step": step, "loss": 1 / (step + 1)})
        journal.close()
        made = finished(cell, f"{number}23456789abcdef0" * 4)
        claim.finish(replace(made, samples=b"samples of any kind"))
    return store


@pytest.fixture
def packed(store: Store, tmp_path: Path) -> Path:
    path = tmp_path / "runs.jsonl.xz"
    pack_runs(store, KEYS, path, shown=KEYS[:1])
    return path


def contents(store: Store, key: str) -> dict[str, bytes]:
    files = (path for path in store.directory(key).iterdir() if path.name != "run.lock")
    return {path.name: path.read_bytes() for path in files}


def rewrite(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(lzma.compress(b"".join(lines)))


def lines_of(path: Path) -> list[bytes]:
    return lzma.decompress(path.read_bytes()).splitlines(keepends=True)


def test_finished_runs_come_back_byte_for_byte(store: Store, packed: Path, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    assert unpack_runs(packed, other) == (len(KEYS) - 1, 0, 0)
    assert contents(other, KEYS[0]) == contents(store, KEYS[0])
    assert set(other.keys()) == set(KEYS[:-1]), "an unfinished run is left out"
    for key in KEYS[:-1]:
        assert other.record(key) == store.record(key)
        assert other.log_events(key) == store.log_events(key)
        assert other.find_damage(key) is None
    assert other.file(KEYS[1], "attention.safetensors") is None, (
        "only the maps asked for are packed"
    )
    assert other.file(KEYS[1], "samples.safetensors") is None


@pytest.mark.parametrize("without", ["maps", "samples"])
def test_maps_and_samples_may_be_left_out(store: Store, tmp_path: Path, without: Extra) -> None:
    path, other = tmp_path / "runs.jsonl.xz", Store(tmp_path / "other")
    pack_runs(store, KEYS, path, shown=KEYS[:1], without=(without,))
    unpack_runs(path, other)
    kept = {
        "maps": other.file(KEYS[0], "attention.safetensors"),
        "samples": other.file(KEYS[0], "samples.safetensors"),
    }
    assert [name for name, data in kept.items() if data is None] == [without]
    assert other.record(KEYS[0]) == store.record(KEYS[0])
    another = replace(finished(CELLS[0], "f" * 64), attention=b"maps", samples=b"samples")
    assert not other.complete(another), "the record is another one"
    pack_runs(store, KEYS, path, shown=KEYS[:1])
    assert unpack_runs(path, other) == (0, len(KEYS) - 1, 1), "a fuller file adds what is missing"
    assert other.find_damage(KEYS[0]) is None
    assert [other.file(KEYS[0], name) for name in EXTRAS] == [
        store.file(KEYS[0], name) for name in EXTRAS
    ]


def test_what_is_there_stays(store: Store, packed: Path) -> None:
    before = [contents(store, key) for key in KEYS[:-1]]
    assert unpack_runs(packed, store) == (0, len(KEYS) - 1, 0)
    assert [contents(store, key) for key in KEYS[:-1]] == before


def test_a_stopped_run_is_replaced_by_the_finished_one(packed: Path, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    claim = other.claim(CELLS[0].run.identity())
    assert claim is not None
    (claim.directory / "checkpoints").mkdir()
    (claim.directory / "metrics.jsonl").write_text("half a line")
    with pytest.raises(BusyError):
        unpack_runs(packed, other)
    claim.release()
    assert unpack_runs(packed, other) == (len(KEYS) - 1, 0, 0)
    assert not (claim.directory / "checkpoints").exists()
    assert len(other.log_events(KEYS[0])) == 3


def test_every_flipped_byte_is_noticed(packed: Path, tmp_path: Path) -> None:
    sound, chance = packed.read_bytes(), random.Random(3)
    for trial in range(60):
        place = chance.randrange(len(sound))
        changed = bytearray(sound)
        changed[place] ^= 1 << chance.randrange(8)
        packed.write_bytes(changed)
        other = Store(tmp_path / f"other{trial}")
        with pytest.raises(DamagedError, match=r"runs\.jsonl\.xz"):
            unpack_runs(packed, other)
        added = other.keys()
        assert [other.find_damage(key) for key in added] == [None] * len(added)


def test_a_file_that_was_cut_says_what_was_added(packed: Path, tmp_path: Path) -> None:
    lines = lines_of(packed)
    rewrite(packed, [*lines[:2], lines[2][:-9]])
    other = Store(tmp_path / "other")
    with pytest.raises(DamagedError, match="before this error, 1 run went into"):
        unpack_runs(packed, other)
    assert other.keys() == tuple(KEYS[:1])


@pytest.mark.parametrize("left", [1, 2])
def test_a_missing_run_is_noticed(packed: Path, tmp_path: Path, left: int) -> None:
    rewrite(packed, lines_of(packed)[:left])
    with pytest.raises(
        DamagedError, match=f"is cut: expected {len(KEYS) - 1} runs, got {left - 1}"
    ):
        unpack_runs(packed, Store(tmp_path / "other"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run_key": KEYS[2]}, "to different runs"),
        ({"record.json": "{}"}, "record|schema_version"),
        ({"config.json": "[]"}, "cannot be read"),
        ({"attention": "?"}, "cannot be read"),
        ({"metrics.jsonl": 3}, "cannot be read"),
    ],
    ids=str,
)
def test_a_run_that_contradicts_itself_is_refused(
    packed: Path, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    header, first, *others = lines_of(packed)
    fields = from_line(first.removesuffix(b"\n"))
    rewrite(packed, [header, to_line({**fields, **changes}), *others])
    other = Store(tmp_path / "other")
    with pytest.raises(DamagedError, match=message):
        unpack_runs(packed, other)
    assert other.keys() == ()


def test_the_configuration_of_another_run_is_refused(packed: Path, tmp_path: Path) -> None:
    header, first, second, *others = lines_of(packed)
    fields, another = (from_line(line.removesuffix(b"\n")) for line in (first, second))
    changed = another["config.json"].replace(another["run_key"], fields["run_key"])
    rewrite(packed, [header, to_line({**fields, "config.json": changed}), *others])
    with pytest.raises(DamagedError, match="configuration and record differ"):
        unpack_runs(packed, Store(tmp_path / "other"))
