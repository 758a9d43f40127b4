"""Documents from files, and the messages for invalid ones."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from qkvary.data import documents
from qkvary.data.documents import FileDocuments
from qkvary.storage.errors import DamagedError, UnsafeError, UsageError

TEXTS = ["one\nline two", "three é", "\tfour "]


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def lines(texts: list[str]) -> str:
    return "".join(json.dumps({"id": 7, "text": text}) + "\n" for text in texts)


def write_table(path: Path, **columns: list[object]) -> Path:
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


def read(*paths: Path, field: str = "text") -> list[str]:
    return [document.text for document in FileDocuments(files=paths, field=field).read()]


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    text = "\n  first\r\nsecond\0 \n"
    assert read(write(tmp_path / "a.txt", text)) == [text]
    assert read(write(tmp_path / "b.txt", "\ufeff" + text)) == [text]
    assert read(write(tmp_path / "no ending", text)) == [text]


def test_marks_cut_a_text_file(tmp_path: Path) -> None:
    mark = "\n<|endoftext|>\n"
    text = f"first {mark}{mark}second\nline{mark} \n{mark}third"
    assert read(write(tmp_path / "a.txt", text)) == ["first", "second\nline", "third"]


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
@given(parts=st.lists(st.text(alphabet="ab<|é\n"), max_size=6))
def test_chunk_borders_change_nothing(
    chunk: int, parts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("c") / "a.txt", "<|endoftext|>".join(parts))
    expected = [part.strip() for part in parts if part.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_CHUNK", chunk)
        found = read(path)
    assert found == (expected if len(parts) > 1 else [part for part in parts if part.strip()])


def test_lines_of_json(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.jsonl", lines(TEXTS))) == TEXTS
    assert read(write(tmp_path / "a.ndjson", "\ufeff" + lines(TEXTS).rstrip())) == TEXTS
    empty = lines(["a"]) + "\n  \n" + lines(["", "b"])
    assert read(write(tmp_path / "a.jsonl", empty)) == ["a", "b"]
    other = write(tmp_path / "b.jsonl", '{"content": "x"}')
    assert read(other, field="content") == ["x"]


def test_packed_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(lines(TEXTS).encode()))
    assert read(path) == TEXTS
    assert read(write(tmp_path / "a.txt.gz", gzip.compress(b"hello"))) == ["hello"]


def test_parquet(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", id=[1, 2, 3], text=TEXTS)
    assert read(path) == TEXTS
    assert read(write_table(tmp_path / "b.parquet", body=["x"]), field="body") == ["x"]


def test_reading_resumes_after_any_document(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a.txt", "a<|endoftext|>b<|endoftext|> <|endoftext|>c"),
        write(tmp_path / "b.jsonl", lines(["d", "", "e"])),
        write_table(tmp_path / "c.parquet", text=["f", " ", "g", "h", "i"]),
    ]
    source = FileDocuments(files=files)
    whole = [(document, source.position()) for document in source.read()]
    assert [document.text for document, _ in whole] == list("abcdefghi")
    for number, (_, position) in enumerate(whole):
        rest = list(FileDocuments(files=files).read(json.loads(json.dumps(position))))
        assert rest == [document for document, _ in whole[number + 1 :]]


@pytest.mark.parametrize(
    ("name", "data", "error", "message"),
    [
        ("a.txt", b"one\ntwo\nth\xffree", UsageError, ":3: expected UTF-8, got the byte 0xff"),
        ("a.txt", b"one\n<|endoftext|>\ntwo\x80", UsageError, ":3: expected UTF-8"),
        ("a.jsonl", lines(["x"]) + "{text: 1}\n", UsageError, ":2: expected one JSON object per"),
        ("a.jsonl", '\n{"body": 1, "x": 2}', UsageError, ":2: expected the field 'text', got body"),
        ("a.jsonl", '{"text": 1}', UsageError, ":1: expected text in 'text', got a int"),
        ("a.jsonl", '{"text": "ab\\ud83d"}', UsageError, ":1: expected text, got an unpaired"),
        ("a.jsonl", "[" * 200_000, UsageError, ":1: expected one JSON object per line"),
        ("a.txt.gz", gzip.compress(b"a" * 99, mtime=0)[:-9], DamagedError, " cannot be unpacked"),
        ("a.parquet", "hello", DamagedError, " cannot be read as parquet"),
        ("a.parquet", ["x", None], UsageError, ":2: expected text in 'text', got a NoneType"),
    ],
)
def test_invalid_documents_are_rejected_in_one_line(
    tmp_path: Path,
    name: str,
    data: bytes | str | list[object],
    error: type[Exception],
    message: str,
) -> None:
    path = tmp_path / name
    if isinstance(data, list):
        write_table(path, text=data)
    else:
        write(path, data)
    with pytest.raises(error) as caught:
        read(path)
    assert f"{name}{message}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_is_no_document(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which is not a file"):
        read(tmp_path)


def test_a_compression_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only archives that are read are single packed files, and nothing is unpacked to."""
    monkeypatch.setattr(documents, "FREE_BYTES", 10_000)
    for name in ("a.txt.gz", "a.jsonl.gz"):
        bomb = write(tmp_path / name, gzip.compress(b"\n" * 1_000_000))
        with pytest.raises(UnsafeError, match="expands to more than"):
            read(bomb)
    fine = write(tmp_path / "b.txt.gz", gzip.compress(b"\n" * 9_000 + b"x"))
    assert len(read(fine)) == 1
