"""Preparing: what is asked for comes out, whoever interrupts it, and one at a time (D6, D7)."""

import json
import random
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import qkvary
from qkvary.data.portions import LOCK_FILE
from qkvary.data.preparation import Progress, Settings, prepare
from qkvary.data.prepared import open_prepared
from qkvary.data.sources import Choices, Source, find_source
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.storage.durable import TEMPORARY_PREFIX
from qkvary.storage.errors import DamagedError, UsageError
from tests.data import preparing_script
from tests.data.small_sets import BYTES, made_up, make_set, plain_tokens
from tests.storage.damage import trials
from tests.storage.quick_disk import quick_folder

KILLS = trials("DATA_KILLS", 3)
SOURCE_FOLDER = Path(qkvary.__file__).parents[1]
folder = pytest.fixture(quick_folder)


def write_texts(place: Path, count: int, seed: int = 5) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, share in (("train", count), ("valid", max(2, count // 9))):
        texts = made_up(share, seed)
        (place / f"{name}.txt").write_text("<|endoftext|>".join(texts), "utf-8")
    return place


def start(texts: Path, out: Path, portion: int, mutant: str = "") -> "subprocess.Popen[str]":
    paths = f"{SOURCE_FOLDER}:{SOURCE_FOLDER.parent}:{sysconfig.get_path('purelib')}"
    return subprocess.Popen(
        [
            sys.executable,
            str(preparing_script.__file__),
            str(texts),
            str(out),
            str(portion),
            mutant,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "QKVARY_CACHE": str(out) + "-c"},
    )


def contents(place: Path) -> dict[str, bytes]:
    """Everything in a folder but the lock, which names its last owner."""
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name != LOCK_FILE}


def undisturbed(texts: Path, place: Path, portion: int) -> dict[str, bytes]:
    preparing_script.main(texts, place, portion, "")
    return contents(place)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("block", [1, 30, 10_000])
def test_workers_and_blocks_change_nothing(tmp_path: Path, workers: int, block: int) -> None:
    texts = made_up(40, seed=8)
    settings = Settings(workers=workers, portions=(40, 90), block_bytes=block)
    found = make_set(tmp_path, texts, settings=settings)
    assert found.splits["train"].read(0, found.splits["train"].tokens).tolist() == plain_tokens(
        texts
    )
    assert found.fingerprint == make_set(tmp_path / "other", texts).fingerprint


def test_nothing_but_the_set_is_left(tmp_path: Path) -> None:
    data = make_set(tmp_path, made_up(9, seed=1))
    names = {path.name for path in data.path.iterdir()}
    listed = set(json.loads((data.path / "MANIFEST.json").read_text("utf-8"))["files"])
    assert names == listed | {"MANIFEST.json", LOCK_FILE}


def test_a_second_time_nothing_is_written(tmp_path: Path) -> None:
    data = make_set(tmp_path, made_up(9, seed=1))
    before = {path: path.stat().st_mtime_ns for path in data.path.iterdir()}
    again = make_set(tmp_path, made_up(9, seed=1))
    assert again.fingerprint == data.fingerprint
    after = {path: path.stat().st_mtime_ns for path in data.path.iterdir()}
    assert {path.name for path in before if before[path] != after[path]} <= {LOCK_FILE}


@pytest.mark.parametrize(
    ("tokenizer", "documents", "portions", "message"),
    [
        (BYTES, 10, (40, 90), "another source"),
        (ByteTokenizer(has_separator=True), 9, (41, 90), "another portions"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_two_sets_are_never_mixed(
    tmp_path: Path,
    tokenizer: ByteTokenizer,
    documents: int,
    portions: tuple[int, int],
    message: str,
    complete: bool,
) -> None:
    if complete:
        make_set(tmp_path, made_up(9, seed=1))
    else:
        with pytest.raises(ZeroDivisionError):
            make_set(tmp_path, made_up(9, seed=1), settings=interrupted(4))
    settings = Settings(workers=1, portions=portions)
    with pytest.raises(UsageError, match=message):
        make_set(tmp_path, made_up(documents, seed=1), tokenizer=tokenizer, settings=settings)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "thesis.txt").write_text("dear")
    with pytest.raises(UsageError, match=r"expected an empty folder .* with thesis\.txt"):
        make_set(tmp_path, made_up(9, seed=1))
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["thesis.txt"]


def interrupted(after: int, error: type[BaseException] = ZeroDivisionError) -> Settings:
    """Settings whose report raises at its so manieth call."""
    calls = iter(range(after))

    def report(_progress: Progress) -> None:
        if next(calls, None) is None:
            raise error

    return Settings(workers=1, portions=(40, 90), block_bytes=16, report=report)


@pytest.mark.parametrize("after", range(1, 12))
def test_who_starts_again_goes_on_behind_the_last_portion(tmp_path: Path, after: int) -> None:
    texts = made_up(30, seed=2)
    expected = make_set(tmp_path / "whole", texts)
    place = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        make_set(place, texts, settings=interrupted(after, KeyboardInterrupt))
    records = list((place / "set").glob("portion-*.json"))
    with pytest.raises(UsageError, match="is not finished"):
        open_prepared(place / "set")
    reports: list[tuple[int, int]] = []
    settings = Settings(
        workers=1,
        portions=(40, 90),
        block_bytes=16,
        report=lambda one: reports.append((one.resumed_bytes, one.text_bytes)),
    )
    make_set(place, texts, settings=settings)
    assert contents(place / "set") == contents(expected.path)
    assert (reports[0][0] > 0) == bool(records)
    assert reports[-1][1] == sum(len(text.strip().encode()) for text in [*texts, "held out"])


def test_a_record_that_was_changed_is_found_out(tmp_path: Path) -> None:
    texts = made_up(30, seed=2)
    with pytest.raises(ZeroDivisionError):
        make_set(tmp_path, texts, settings=interrupted(9))
    place = tmp_path / "set"
    record = place / "portion-00000.json"
    whole = record.read_bytes()
    record.write_bytes(whole.replace(b'"stream_tokens":', b'"stream_tokens":1'))
    with pytest.raises(DamagedError, match=r"portion-00000\.json was changed; remove the folder"):
        make_set(tmp_path, texts)
    record.write_bytes(whole)
    shard = place / "train-00000.bin"
    data = shard.read_bytes()
    shard.write_bytes(data[:-2])
    with pytest.raises(DamagedError, match=r"train-00000\.bin is not what was written"):
        make_set(tmp_path, texts)
    shard.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(DamagedError, match=r"train-00000\.bin is not what was written"):
        make_set(tmp_path, texts)


@pytest.mark.parametrize("left", [b'{"kind": "bytes"}', None])
def test_a_set_vouches_for_the_tokenizer_that_made_it(tmp_path: Path, left: bytes | None) -> None:
    """Not for whatever lies in its place when preparing goes on."""
    texts = made_up(30, seed=2)
    expected = make_set(tmp_path / "whole", texts)
    with pytest.raises(ZeroDivisionError):
        make_set(tmp_path, texts, settings=interrupted(9))
    path = tmp_path / "set" / "tokenizer.json"
    path.unlink(missing_ok=True)
    if left is not None:
        path.write_bytes(left)
    make_set(tmp_path, texts)
    assert contents(tmp_path / "set") == contents(expected.path)
    assert open_prepared(tmp_path / "set").separator == BYTES.separator


@pytest.mark.parametrize("limit", [1, 7, 40, 41, 100, 10_000])
@pytest.mark.parametrize("workers", [1, 3])
def test_tokens_are_taken_up_to_a_document_behind_the_limit(
    tmp_path: Path, limit: int, workers: int
) -> None:
    train, held_out = made_up(30, seed=4), made_up(3, seed=5)
    texts = write_texts(tmp_path / "texts", 30, seed=4)
    (texts / "valid.txt").write_text("<|endoftext|>".join(held_out), "utf-8")
    source = find_source(texts, Choices(max_tokens=limit))
    settings = Settings(workers=workers, portions=(40, 90), block_bytes=16)
    data = prepare(source, BYTES, tmp_path / "set", tokenizer_name="bytes", settings=settings)
    taken: list[str] = []
    while len(plain_tokens(taken)) < limit and len(taken) < len(train):
        taken.append(train[len(taken)])
    split = data.splits["train"]
    assert split.read(0, split.tokens).tolist() == plain_tokens(taken)
    held = data.splits["validation"]
    assert held.read(0, held.tokens).tolist() == plain_tokens(held_out)


def test_a_document_that_meets_the_limit_exactly_is_the_last(tmp_path: Path) -> None:
    limit = len(plain_tokens(made_up(30, seed=4)[:3]))
    texts = write_texts(tmp_path / "texts", 30, seed=4)
    source = find_source(texts, Choices(max_tokens=limit))
    data = prepare(source, BYTES, tmp_path / "set", tokenizer_name="bytes")
    assert data.splits["train"].tokens == limit


def test_a_source_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"validation in made up, got none; .* `qkvary data p"):
        make_set(tmp_path, ["a"], [" "])
    empty = Source(name="nothing", streams=[])
    with pytest.raises(UsageError, match="expected documents for train in nothing"):
        prepare(empty, BYTES, tmp_path / "empty", tokenizer_name="bytes")


def test_overlap_is_counted(tmp_path: Path) -> None:
    """D9."""
    data = make_set(tmp_path, ["a", "b", " a", "c"], ["c ", "d", "a", "a"])
    assert data.about["overlap"] == {
        "shared_documents": {"validation in train": 3},
        "repeated_documents": {"train": 1, "validation": 1},
    }


def test_overlap_is_that_of_the_split_that_is_named_first(tmp_path: Path) -> None:
    data = make_set(tmp_path, ["a", "b", "c"], ["a", "a", "d"])
    assert data.about["overlap"]["shared_documents"] == {"validation in train": 2}


@pytest.mark.parametrize("kind", ["", "threads"])
def test_a_set_that_was_killed_is_the_one_that_was_not(folder: Path, kind: str) -> None:
    """D6: kill -9 at random times, any number of times."""
    texts, portion = write_texts(folder / "texts", 1500), 2000
    begun = time.monotonic()
    expected = undisturbed(texts, folder / "whole", portion)
    # A process takes longer than this function: most of it is its start.
    started = start(texts, folder / "timed", portion, kind)
    assert started.communicate()[1] == ""
    length = time.monotonic() - begun
    generator = random.Random(f"kills {kind}")
    killed = 0
    for number in range(KILLS):
        place = folder / f"set-{number}"
        for _ in range(generator.randrange(1, 4)):
            process = start(texts, place, portion, kind)
            time.sleep(generator.uniform(0.2, 1.0) * length)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += process.returncode == -signal.SIGKILL
            assert not (place / "MANIFEST.json").exists() or open_prepared(place)
        process = start(texts, place, portion, kind)
        assert process.communicate()[1] == ""
        assert process.returncode == 0
        assert contents(place) == expected
    assert killed


def test_one_prepares_at_a_time(folder: Path) -> None:
    """D7: the others are told who does, and the lock dies with its owner."""
    texts = write_texts(folder / "texts", 40)
    owner = start(texts, folder / "set", 200, "waits")
    assert owner.stdout is not None
    assert owner.stdout.readline() == "has the lock\n"
    others = [start(texts, folder / "set", 200) for _ in range(trials("PREPARERS", 2))]
    for other in others:
        message = other.communicate()[1]
        assert other.returncode == 6
        assert f"is in use by process {owner.pid} on" in message
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    after = start(texts, folder / "set", 200)
    assert after.communicate()[1] == ""
    assert after.returncode == 0
    assert contents(folder / "set") == undisturbed(texts, folder / "whole", 200)
    left = [name for name in contents(folder / "set") if name.startswith(TEMPORARY_PREFIX)]
    assert left == []
