"""Hostile files are read as defined, or rejected in one line."""

import gzip
import io
import json
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from qkvary.cli.main import main
from qkvary.data.prepared import TokenSplit, open_prepared
from qkvary.data.tokenizers import Tokenizer
from tests.data.merged import merges_of
from tests.storage.damage import trials
from tests.storage.quick_disk import quick_folder

FILES = trials("NASTY_FILES", 80)
ALPHABET = "ab zé戦🙂\u0301\u202e\ufeff\0\x07\x1b\x85\u2028\r\n\t<|>'\"\\{}[],:0"
folder = pytest.fixture(quick_folder)

Nasty = tuple[str, bytes, list[str] | None]
"""A file's name, its bytes, and its documents; ``None`` where it must be refused."""


def letters(generator: random.Random, most: int = 60) -> str:
    return "".join(generator.choices(ALPHABET, k=generator.randrange(1, most)))


def kept(*texts: str) -> list[str]:
    return [text for text in texts if text.strip()]


def plain(generator: random.Random) -> Nasty:
    text = letters(generator)
    # One mark at the beginning of a file is no part of the text.
    return "a.txt", text.encode(), kept(text.removeprefix("\ufeff"))


def with_mark(generator: random.Random) -> Nasty:
    text = "x" + letters(generator)
    return (
        "a.txt",
        b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
        [text.replace("\n", "\r\n")],
    )


def parts(generator: random.Random) -> Nasty:
    texts = [letters(generator, 20) for _ in range(generator.randrange(2, 9))]
    found = [*texts]
    found[0] = found[0].removeprefix("\ufeff")
    return "a.txt", "<|endoftext|>".join(texts).encode(), kept(*(one.strip() for one in found))


def half_a_mark(generator: random.Random) -> Nasty:
    text = "<|endoftext|x" + letters(generator) + "<|endoftext"
    return "a.txt", text.encode(), [text]


def empty(generator: random.Random) -> Nasty:
    return "a.txt", b" \n\t\r" * generator.randrange(3), []


def wrong_bytes(generator: random.Random) -> Nasty:
    data = bytearray(("y" + letters(generator)).encode())
    data.insert(generator.randrange(1, len(data) + 1), generator.choice([0xFF, 0xC0, 0xFE, 0xF8]))
    return "a.txt", bytes(data), None


def surrogate_bytes(generator: random.Random) -> Nasty:
    return "a.txt", b"one\ntwo " + letters(generator).encode() + b"\xed\xa0\x80", None


def two_bytes_each(generator: random.Random) -> Nasty:
    return "a.txt", letters(generator).encode("utf-16"), None


def noise(generator: random.Random) -> Nasty:
    name = generator.choice(["a.txt", "a.jsonl", "a.parquet", "a.txt.gz", "a.jsonl.gz"])
    return name, b"\xff" + generator.randbytes(generator.randrange(1, 300)), None


def long_line(generator: random.Random) -> Nasty:
    text = generator.choice(["x", "ab", "é ", "\0"]) * generator.randrange(100_000, 300_000)
    return "a.txt", text.encode(), None if text.startswith("\0") else [text]


def lines(generator: random.Random) -> Nasty:
    texts = [letters(generator) for _ in range(generator.randrange(1, 6))]
    ascii_only = generator.random() < 0.5
    end = generator.choice(["\n", "\r\n"])
    content = end.join(
        json.dumps({"n": float("nan"), "text": text}, ensure_ascii=ascii_only) for text in texts
    )
    return "a.jsonl", content.encode() + generator.choice([b"", b"\n", b"\r\n\n"]), kept(*texts)


def bad_line(generator: random.Random) -> Nasty:
    bad = generator.choice(
        [
            '{"text": "\\ud800"}',
            '{"text": "a\\udc00b"}',
            '{"text": null}',
            '{"text": 1e999}',
            '{"text": ["a"]}',
            '{"Text": "a"}',
            '{"text": "a"',
            '{"text": "a"} {"text": "b"}',
            "{'text': 'a'}",
            '"text"',
            "null",
            "[" * 100_000,
            "9" * 5000,
            "\0",
        ]
    )
    good = json.dumps({"text": "good"})
    rows = [good] * generator.randrange(4) + [bad] + [good] * generator.randrange(2)
    return "a.jsonl", "\n".join(rows).encode(), None


def twice_the_same_key(generator: random.Random) -> Nasty:
    text = letters(generator)
    return "a.jsonl", ('{"text": "first", "text": ' + json.dumps(text) + "}").encode(), kept(text)


def table(generator: random.Random) -> Nasty:
    texts = [letters(generator) for _ in range(generator.randrange(1, 6))]
    sink = io.BytesIO()
    parquet.write_table(pa.table({"text": texts}), sink)
    data = sink.getvalue()
    if generator.random() < 0.5:
        return "a.parquet", data, kept(*texts)
    return "a.parquet", data[: generator.randrange(len(data))], None


def packed(generator: random.Random) -> Nasty:
    text = "x" + letters(generator)
    data = gzip.compress(text.encode(), mtime=0)
    if generator.random() < 0.5:
        return "a.txt.gz", data, [text]
    return "a.txt.gz", data[: generator.randrange(1, len(data))], None


def odd_name(generator: random.Random) -> Nasty:
    name = generator.choice(["-rf", "a b\n", "$(x)", "%s", "é戦", "[red]", "\udcff", "b" * 200])
    return name + ".txt", b"\xff" if generator.random() < 0.5 else b"fine", None


KINDS: tuple[Callable[[random.Random], Nasty], ...] = (
    plain,
    with_mark,
    parts,
    half_a_mark,
    empty,
    wrong_bytes,
    surrogate_bytes,
    two_bytes_each,
    noise,
    long_line,
    lines,
    bad_line,
    twice_the_same_key,
    table,
    packed,
    odd_name,
)


def texts_of(split: TokenSplit, tokenizer: Tokenizer) -> list[str]:
    found: list[str] = []
    starts = split.document_starts.tolist()
    for start, end in pairwise(starts):
        tokens = split.read(start, end - start).tolist()
        assert tokens[-1] == tokenizer.separator
        assert tokenizer.separator not in tokens[:-1]
        found.append(b"".join(map(tokenizer.piece, tokens)).decode())
    return found


def prepare(place: Path, nasty: Nasty, tokenizer: str) -> int:
    name, data, _ = nasty
    place.mkdir()
    (place / "train").mkdir()
    (place / "train" / "0.txt").write_text("good", "utf-8")
    (place / "train" / name).write_bytes(data)
    (place / "valid.txt").write_text("held out", "utf-8")
    return main(
        ["data", "prepare", str(place), "--out", str(place / "set"), "--tokenizer", tokenizer]
    )


def check(place: Path, nasty: Nasty, code: int, error: str) -> None:
    name, data, expected = nasty
    assert "Traceback" not in error
    assert "this is a bug" not in error
    if code == 0:
        found = open_prepared(place / "set")
        texts = texts_of(found.splits["train"], found.tokenizer)
        wanted = ["good", *([data.decode()] if expected is None else expected)]
        assert sorted(texts) == sorted(wanted)
        return
    assert code in {2, 3, 7}, error
    assert not (place / "set" / "MANIFEST.json").exists()
    assert error.startswith("qkvary: ")
    assert len(error.splitlines()) <= 3
    where = r"(:\d+: |cannot be unpacked|cannot be read as parquet|NUL bytes in a row)"
    assert re.search(where, error), error
    assert not name.startswith("a.") or f"/{name}" in error


@pytest.mark.parametrize("tokenizer", ["bytes", "merges", "characters"])
def test_hostile_files_are_read_or_rejected(
    folder: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if tokenizer == "merges":
        tokenizer = str(folder / "merges.txt")
        Path(tokenizer).write_text(merges_of("stand-in"), "utf-8")
    codes: dict[int, int] = {}
    for seed in range(FILES // 3 + 1):
        generator = random.Random(f"{tokenizer} {seed}")
        make = KINDS[seed % len(KINDS)]
        nasty = make(generator)
        code = prepare(folder / str(seed), nasty, tokenizer)
        error = capsys.readouterr().err
        try:
            check(folder / str(seed), nasty, code, error)
        except AssertionError as failure:
            raise AssertionError(f"{make.__name__}, seed {seed}: {error}") from failure
        if make is not odd_name:
            assert (code != 0) == (nasty[2] is None), f"{make.__name__}, seed {seed}: {error}"
        codes[code] = codes.get(code, 0) + 1
    assert codes[0] > 5
    assert codes[2] > 5


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["x", "ab", "x "])
def test_a_line_of_a_hundred_megabytes(folder: Path, letter: str) -> None:
    text = letter * (100_000_000 // len(letter))
    nasty = ("a.jsonl", json.dumps({"text": text}).encode(), [text])
    assert prepare(folder / "bytes", nasty, "bytes") == 0
    found = open_prepared(folder / "bytes" / "set").splits["train"]
    assert found.text_bytes == len(text) + 4
    # GPT-2's tokens need a space now and then.
    merges = folder / "merges.txt"
    merges.write_text(merges_of("stand-in"), "utf-8")
    assert prepare(folder / "merges", nasty, str(merges)) == (0 if " " in letter else 2)
