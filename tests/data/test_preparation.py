"""Preparation: correct, resumable, and by one process at a time."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qkvary.data.preparation import LOCK_FILE, OnProgress, prepare
from qkvary.data.prepared import open_prepared, read_record
from qkvary.data.sources import Source, SourceOptions, find_source
from qkvary.storage.durable import TEMPORARY_PREFIX
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.journal import to_line
from tests.data import preparing_script
from tests.data.small_sets import BYTES, made_up, make_set, plain_tokens, tiny_groups
from tests.forked import ForkedPython
from tests.storage.damage import trials

KILLS = trials("DATA_KILLS", 3)


def write_texts(place: Path, count: int, seed: int = 5) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, share in (("train", count), ("valid", max(2, count // 9))):
        texts = made_up(share, seed)
        (place / f"{name}.txt").write_text("<|endoftext|>".join(texts), "utf-8")
    return place


def start(texts: Path, out: Path, group: int, way: str = "") -> "subprocess.Popen[str]":
    words = map(str, (preparing_script.__file__, texts, out, group))
    return ForkedPython(
        [sys.executable, *words, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "QKVARY_CACHE": f"{out}-c"},
    )


def contents(place: Path) -> dict[str, bytes]:
    """Everything in a folder but the lock, which names its last owner."""
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name != LOCK_FILE}


def undisturbed(texts: Path, place: Path, group: int) -> dict[str, bytes]:
    preparing_script.main(texts, place, group, "")
    return contents(place)


@pytest.mark.parametrize(("workers", "block"), [(1, 1), (2, 30), (5, 10_000)])
def test_workers_and_blocks_change_nothing(tmp_path: Path, workers: int, block: int) -> None:
    texts = made_up(40, seed=8)
    found = make_set(tmp_path, texts, workers=workers, block=block)
    assert found.splits["train"].read(0, found.splits["train"].tokens).tolist() == plain_tokens(
        texts
    )
    assert found.fingerprint == make_set(tmp_path / "other", texts).fingerprint


def test_a_second_time_nothing_is_written(tmp_path: Path) -> None:
    data = make_set(tmp_path, made_up(9, seed=1))
    before = {path: path.stat().st_mtime_ns for path in data.path.iterdir()}
    again = make_set(tmp_path, made_up(9, seed=1))
    assert again.fingerprint == data.fingerprint
    after = {path: path.stat().st_mtime_ns for path in data.path.iterdir()}
    assert {path.name for path in before if before[path] != after[path]} <= {LOCK_FILE}


@pytest.mark.parametrize(
    ("documents", "groups", "message"),
    [(10, (40, 90), "another source"), (9, (41, 90), "another portions")],
)
@pytest.mark.parametrize("complete", [True, False])
def test_two_sets_are_never_mixed(
    tmp_path: Path, documents: int, groups: tuple[int, int], message: str, complete: bool
) -> None:
    if complete:
        make_set(tmp_path, made_up(9, seed=1))
    else:
        with pytest.raises(ZeroDivisionError):
            make_set(tmp_path, made_up(9, seed=1), on_progress=interrupted(4))
    with pytest.raises(UsageError, match=message):
        make_set(tmp_path, made_up(documents, seed=1), groups=groups)


def interrupted(after: int, error: type[BaseException] = ZeroDivisionError) -> OnProgress:
    """Return a callback that raises at its n-th call."""
    calls = iter(range(after))

    def report(_bytes: int, _total: int, _note: str) -> None:
        if next(calls, None) is None:
            raise error

    return report


@pytest.mark.parametrize("after", range(1, 12, 3))
def test_a_restart_resumes_after_the_last_group(tmp_path: Path, after: int) -> None:
    texts = made_up(30, seed=2)
    expected = make_set(tmp_path / "whole", texts)
    place = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        make_set(place, texts, on_progress=interrupted(after, KeyboardInterrupt))
    records = list((place / "set").glob("portion-*.json"))
    with pytest.raises(UsageError, match="is not finished"):
        open_prepared(place / "set")
    reports: list[int] = []
    make_set(place, texts, on_progress=lambda done, _total, _note: reports.append(done))
    assert contents(place / "set") == contents(expected.path)
    assert (reports[0] > 0) == bool(records)
    assert reports[-1] == sum(len(text.strip().encode()) for text in [*texts, "held out"])


def test_a_preparation_that_an_older_version_began_is_resumed(tmp_path: Path) -> None:
    texts = made_up(30, seed=2)
    with pytest.raises(ZeroDivisionError):
        make_set(tmp_path, texts, on_progress=interrupted(9))
    for record in (tmp_path / "set").glob("portion-*.json"):
        fields = read_record(record)
        assert all(type(entry) is list for entry in fields["files"].values())
        record.write_bytes(to_line({**fields, "blocks": {}}))
    assert contents(make_set(tmp_path, texts).path) == contents(
        make_set(tmp_path / "b", texts).path
    )


def test_a_changed_record_is_detected(tmp_path: Path) -> None:
    texts = made_up(30, seed=2)
    with pytest.raises(ZeroDivisionError):
        make_set(tmp_path, texts, on_progress=interrupted(9))
    place = tmp_path / "set"
    record = place / "portion-00000.json"
    whole = record.read_bytes()
    record.write_bytes(whole.replace(b'"stream_tokens":', b'"stream_tokens":1'))
    with pytest.raises(DamagedError, match=r"portion-00000\.json was changed; remove the folder"):
        make_set(tmp_path, texts)
    record.write_bytes(whole)
    shard = place / "train-00000.bin"
    data = shard.read_bytes()
    for damaged in (data[:-2], bytes([data[0] ^ 1]) + data[1:]):
        shard.write_bytes(damaged)
        with pytest.raises(DamagedError, match=r"train-00000\.bin was changed"):
            make_set(tmp_path, texts)


# What the first four documents have; the fourth does not end a group.
EXACTLY = len(plain_tokens(made_up(30, seed=4)[:4]))


@pytest.mark.parametrize(
    ("limit", "workers"), [(1, 1), (40, 3), (41, 1), (EXACTLY, 1), (10_000, 3)]
)
def test_the_limit_includes_the_document_that_reaches_it(
    tmp_path: Path, limit: int, workers: int
) -> None:
    train, held_out = made_up(30, seed=4), made_up(3, seed=5)
    texts = write_texts(tmp_path / "texts", 30, seed=4)
    (texts / "valid.txt").write_text("<|endoftext|>".join(held_out), "utf-8")
    source = find_source(str(texts), SourceOptions(max_tokens=limit)).read()
    with tiny_groups():
        data = prepare(source, BYTES, tmp_path / "set", tokenizer_name="bytes", workers=workers)
    taken: list[str] = []
    while len(plain_tokens(taken)) < limit and len(taken) < len(train):
        taken.append(train[len(taken)])
    split = data.splits["train"]
    assert split.read(0, split.tokens).tolist() == plain_tokens(taken)
    held = data.splits["validation"]
    assert held.read(0, held.tokens).tolist() == plain_tokens(held_out)


def test_a_source_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"validation in made up, got none .* all: 1\); give a longer .* `qkv"
    ):
        make_set(tmp_path, ["a"], [" "])
    empty = Source(name="nothing", streams=[])
    with pytest.raises(UsageError, match="expected documents for train in nothing"):
        prepare(empty, BYTES, tmp_path / "empty", tokenizer_name="bytes")


def test_overlap_is_that_of_the_split_that_is_named_first(tmp_path: Path) -> None:
    """Documents that occur twice, within a split and across splits."""
    data = make_set(tmp_path, ["a", "b", " a", "c"], ["c ", "d", "a", "a", "a"])
    assert data.about["overlap"] == {
        "shared_documents": {"validation in train": 4},
        "repeated_documents": {"train": 1, "validation": 2},
    }


@pytest.mark.parametrize("kind", ["", "threads"])
def test_a_killed_preparation_gives_the_same_set(tmp_path: Path, kind: str) -> None:
    """Kill -9 after any number of groups, any number of times."""
    texts, group = write_texts(tmp_path / "texts", 1500), 2000
    expected = undisturbed(texts, tmp_path / "whole", group)
    groups = sum(name.endswith(".digests.bin") for name in expected)
    generator = random.Random(f"kills {kind}")
    killed = 0
    for number in range(KILLS):
        place = tmp_path / f"set-{number}"
        for _ in range(generator.randrange(1, 4)):
            process = start(texts, place, group, kind)
            enough = generator.randrange(groups)
            while process.poll() is None and len(list(place.glob("portion-*.json"))) < enough:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += process.returncode == -signal.SIGKILL
            assert not (place / "MANIFEST.json").exists() or open_prepared(place)
        process = start(texts, place, group, kind)
        assert process.communicate()[1] == ""
        assert process.returncode == 0
        assert contents(place) == expected
    assert killed


def test_only_one_process_prepares_a_set(tmp_path: Path) -> None:
    """Other processes learn the owner, and the lock dies with it."""
    texts = write_texts(tmp_path / "texts", 40)
    owner = start(texts, tmp_path / "set", 200, "waits")
    assert owner.stdout is not None
    assert owner.stdout.readline() == "has the lock\n"
    others = [start(texts, tmp_path / "set", 200) for _ in range(trials("PREPARERS", 2))]
    for other in others:
        message = other.communicate()[1]
        assert other.returncode == 6
        assert f"is in use by process {owner.pid} on" in message
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    after = start(texts, tmp_path / "set", 200)
    assert after.communicate()[1] == ""
    assert after.returncode == 0
    assert contents(tmp_path / "set") == undisturbed(texts, tmp_path / "whole", 200)
    left = [name for name in contents(tmp_path / "set") if name.startswith(TEMPORARY_PREFIX)]
    assert left == []
