"""Reads documents from files: plain text and JSON lines (optionally gzipped), and parquet.

A text file is one document, or several separated by ``<|endoftext|>``. In the other formats, each
line or row is one document. Errors name the file and the line. Blank documents are skipped. Reading
can resume after any document.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from qkvary.data.byte_pairs import text_bytes
from qkvary.data.splits import (
    MAX_EXACT_DOCUMENTS,
    MAX_SHARE_ERROR,
    HeldOut,
    make_held_out,
    share_error,
)
from qkvary.data.tokenizers import DOCUMENT_END
from qkvary.storage.errors import DamagedError, UnsafeError, UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.packages import require
from qkvary.storage.untrusted_files import FREE_BYTES, LARGEST_RATIO

SECTION_BYTES = 2**26
"""Maximum size in bytes of a document from a text without separators. Longer texts are cut at line
ends."""
SECTION_CUTS = (1, 64, 4096)
"""Numbers of documents per section of a long text. They give documents of 64 MiB, 1 MiB or 16 KiB.
They are tried in this order until the held-out share is close enough."""
LARGEST_LINE = 2**28
"""Maximum size of a line of JSON, in bytes."""
NULS = bytes(16)
"""A run of NUL bytes, as in tar headers and unwritten parts of files. It never occurs in a text."""
_CHUNK, _ROWS = 2**20, 1024
_MARK = DOCUMENT_END.encode()
_BOM = b"\xef\xbb\xbf"

KINDS = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".parquet": "parquet",
}
"""The format by file name extension; ``.gz`` may follow all but parquet."""


class Document(NamedTuple):
    """One document, and its location, which error messages name."""

    text: str
    where: str


class DocumentSource(Protocol):
    """Documents in a fixed order."""

    def read(self, position: JsonValue = None) -> Iterator[Document]:
        """Yield the documents after a position, or all documents if the position is None."""
        ...

    def position(self) -> JsonValue:
        """Return the position after the document that ``read`` yielded last."""
        ...


def is_blank(text: str) -> bool:
    """Return whether a text is only whitespace, without copying it."""
    return not text or text.isspace()


def digest_of(text: str) -> int:
    """Return the first 8 bytes of the sha256 of the stripped text."""
    return int.from_bytes(hashlib.sha256(text.strip().encode()).digest()[:8], "big")


def kind_of(path: Path) -> str | None:
    """Return the format of a file by its name; ``None`` if unknown."""
    plain = Path(path.stem) if path.suffix.lower() == ".gz" else path
    kind = KINDS.get(plain.suffix.lower())
    return None if kind == "parquet" and plain != path else kind


@dataclass(slots=True, kw_only=True)
class FileDocuments:
    """Reads documents from files, one file after the other in the order of ``files``."""

    files: Sequence[Path]
    field: str = "text"
    cuts: int = 1
    """Number of documents per ``SECTION_BYTES`` of a long text."""
    place: tuple[int, int] = (0, 0)
    """The index of the current file, and the number of its documents that were read."""

    def read(self, position: JsonValue = None) -> Iterator[Document]:
        """Yield the documents after a position, or all documents if the position is None."""
        first, skipped = (0, 0) if position is None else cast("list[int]", position)
        for number in range(first, len(self.files)):
            self.place = (number, 0)
            for count, document in enumerate(self._documents(self.files[number]), start=1):
                if number == first and count <= skipped:
                    continue
                self.place = (number, count)
                if not is_blank(document.text):
                    yield document

    def position(self) -> JsonValue:
        """Return the position after the document that ``read`` yielded last."""
        return list(self.place)

    def _documents(self, path: Path) -> Iterator[Document]:
        kind = kind_of(path)
        if kind == "parquet":
            for number, row in enumerate(_read_parquet(path, self.field), start=1):
                yield make_document(row, self.field, f"{path}:{number}")
            return
        if not path.is_file():
            raise UsageError(f"expected a file, got {path}, which is not a file")
        try:
            is_packed = path.suffix.lower() == ".gz"
            with cast("IO[bytes]", _Unpacked(path)) if is_packed else path.open("rb") as file:
                # A file named explicitly is read as text if its extension is unknown.
                is_lines = kind == "lines"
                yield from self._lines(file, path) if is_lines else read_text(file, path, self.cuts)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DamagedError(f"{path} cannot be unpacked: {error}") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None

    def _lines(self, file: IO[bytes], path: Path) -> Iterator[Document]:
        number = 0
        while line := file.readline(LARGEST_LINE + 1):
            number += 1
            where = f"{path}:{number}"
            if len(line) > LARGEST_LINE:
                raise UsageError(f"{where}: expected at most {LARGEST_LINE:,} bytes, got more")
            if number == 1:
                line = line.removeprefix(_BOM)
            if not line.isspace():
                yield make_document(_parse_line(line, where), self.field, where)


def find_rule(files: Sequence[Path], entry: str, share: float) -> tuple[HeldOut | None, int]:
    """Return the rule for held-out documents, and the number of documents per section of a text.

    The numbers in ``SECTION_CUTS`` are tried until the held-out share is close enough to ``share``.
    If no number is close enough, the closest one is returned.
    """
    tried: list[tuple[float, int, HeldOut]] = []
    for cuts in SECTION_CUTS:
        documents = islice(
            FileDocuments(files=files, field=entry, cuts=cuts).read(), MAX_EXACT_DOCUMENTS + 1
        )
        found = [(digest_of(one.text), len(one.text.encode())) for one in documents]
        rule = make_held_out(share, [digest for digest, _ in found])
        if rule is None or (not tried and len(found) > MAX_EXACT_DOCUMENTS):
            return rule, 1
        total = sum(size for _, size in found)
        held = sum(size for digest, size in found if rule.split_of(digest) == "validation")
        tried.append((share_error(share, held, total - held), cuts, rule))
        if tried[-1][0] <= MAX_SHARE_ERROR or total <= SECTION_BYTES:
            break
    _, cuts, rule = min(tried, key=lambda one: one[:2])
    return rule, cuts


class _Unpacked(gzip.GzipFile):
    """A compressed text. Reading it raises an error if its size becomes implausible."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._path, self._size, self._given = path, path.stat().st_size, 0
        self._limit = max(FREE_BYTES, LARGEST_RATIO * self._size)

    def read(self, size: int | None = -1) -> bytes:
        return self._check(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._check(super().readline(size))

    def _check(self, data: bytes) -> bytes:
        # Counted, because ``tell`` takes longer than reading a line.
        self._given += len(data)
        if self._given > self._limit:
            raise UnsafeError(
                f"{self._path} has {self._size:,} bytes and expands to more than {self._limit:,}, "
                "which is not plausible for a text"
            )
        return data


def _read_chunk(file: IO[bytes], path: Path) -> bytes:
    data = file.read(_CHUNK)
    if NULS in data:
        raise UsageError(
            f"expected a text, got {path}, which contains {len(NULS)} NUL bytes in a row: if the "
            "file is an archive, unpack it; otherwise convert it to text"
        )
    return data


def read_text(file: IO[bytes], path: Path, cuts: int = 1) -> Iterator[Document]:
    """Yield the documents of a text file.

    In a text with separators, whitespace at the start and the end of documents is removed.
    """
    section = max(1, SECTION_BYTES // cuts)
    # Consumed bytes are deleted at the front, which costs nothing, and few bytes are searched
    # twice.
    waiting = bytearray(_read_chunk(file, path).removeprefix(_BOM))
    line, marked, looked, ended = 1, False, 0, not waiting
    limit, is_long = SECTION_BYTES, False
    while waiting or not ended:
        place = waiting.find(_MARK, looked, limit + len(_MARK))
        if place >= 0:
            end, used, marked, is_long = place, place + len(_MARK), True, False
        elif len(waiting) > limit + len(_MARK):
            # Only a text that fills the buffer is known to be long, and is split.
            if not is_long:
                limit, is_long = section, True
            used = end = waiting.rfind(b"\n", 0, limit) + 1
            if not used and limit < SECTION_BYTES:
                limit = min(2 * limit, SECTION_BYTES)
                continue
            if not used:
                raise UsageError(
                    f"{path}:{line}: expected lines of at most {SECTION_BYTES:,} bytes, got a "
                    "longer one"
                )
        elif not ended:
            looked = max(0, len(waiting) - len(_MARK) + 1)
            more = _read_chunk(file, path)
            ended = not more
            waiting += more
            continue
        else:
            end = used = len(waiting)
        text = _decode(waiting, end, path, line)
        yield Document(text.strip() if marked else text, f"{path}:{line}")
        if not ended or used < len(waiting):
            line += waiting.count(b"\n", 0, used)
        del waiting[:used]
        looked, limit = 0, section if is_long else SECTION_BYTES


def _decode(data: bytearray, end: int, path: Path, line: int) -> str:
    try:
        with memoryview(data) as whole, whole[:end] as part:
            return str(part, "utf-8")
    except UnicodeDecodeError as error:
        at = line + data.count(b"\n", 0, error.start)
        raise UsageError(
            f"{path}:{at}: expected UTF-8, got the byte 0x{data[error.start]:02x}: convert the "
            "file to UTF-8"
        ) from None


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: expected one JSON object per line, got: {error}") from None
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: expected a JSON object, got a {type(entry).__name__}")
    return cast("dict[str, Any]", entry)


def _read_parquet(path: Path, field: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file in order; each row has only the column ``field``."""
    require("pyarrow")
    # Only needed for such files.
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    try:
        with parquet.ParquetFile(path) as file:
            _check_field(field, file.schema_arrow.names, str(path))
            for batch in file.iter_batches(batch_size=_ROWS, columns=[field]):
                yield from batch.to_pylist()
    except UsageError:
        raise
    except (pa.ArrowException, ValueError, OSError) as error:
        first = str(error).partition("\n")[0]
        raise DamagedError(f"{path} cannot be read as parquet: {first}") from None


def _check_field(field: str, names: Sequence[str], where: str) -> None:
    """Raise a ``UsageError`` unless a line, row or file has the field that holds the text."""
    if field not in names:
        raise UsageError(
            f"{where}: expected the field {field!r}, got {', '.join(names[:5]) or 'none'}; say "
            "which field holds the text: `qkvary data prepare ... --field NAME`"
        )


def make_document(row: Mapping[str, Any], field: str, where: str) -> Document:
    """Return the document in the field ``field`` of a line or row."""
    _check_field(field, list(row), where)
    value = row[field]
    if not isinstance(value, str):
        raise UsageError(f"{where}: expected text in {field!r}, got a {type(value).__name__}")
    try:
        # A surrogate is never ASCII, and most texts are.
        if not value.isascii():
            text_bytes(value)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    return Document(value, where)


@dataclass(slots=True, kw_only=True)
class TextPart:
    """One part of a text that is split by position."""

    text: str
    where: str

    def read(self, position: JsonValue = None) -> Iterator[Document]:
        """Yield the part as a single document if ``position`` is None; otherwise yield nothing."""
        if position is None and not is_blank(self.text):
            yield Document(self.text, self.where)

    def position(self) -> JsonValue:
        """Return 1, the position after the only document of this part."""
        return 1
