"""Finished runs in one compressed file, to keep with a report or to take to another machine.

A line per run, each with its own digest, behind a line that says how many there are. Trained
networks are left out. Torch-free.
"""

from __future__ import annotations

import lzma
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, cast

from qkvary.storage.durable import atomic_write_file, write_output
from qkvary.storage.errors import DamagedError
from qkvary.storage.journal import from_line, to_line
from qkvary.storage.jsonvalues import decode
from qkvary.storage.untrusted_files import read_file
from qkvary.studies.running.records import Record, from_json, to_json
from qkvary.studies.running.store import CONFIG_NAME, JOURNAL_NAME, RECORD_NAME, Store
from qkvary.text.names import count

Extra = Literal["maps", "samples"]
"""The parts that a file of runs may leave out: attention maps, or samples."""
VERSION = 1
MOST_LINE_BYTES = 1 << 28
"""Bytes of a line; a longer one is no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """The runs that were read from a file."""

    added: int
    """Runs that the store did not hold."""
    present: int
    """Runs that it held already, which are kept."""


def pack_runs(
    store: Store,
    keys: Sequence[str],
    path: Path,
    *,
    shown: Sequence[str] = (),
    without: Collection[Extra] = (),
) -> int:
    """Write the finished runs among ``keys`` to a file; return their number.

    Args:
        store: The store that holds them.
        keys: Keys of runs, of which unfinished ones are left out.
        path: The file, replaced if it exists.
        shown: Keys of the runs whose attention maps and samples are kept too.
        without: Which of these two are left out.

    Raises:
        DamagedError: if one of the runs is damaged.
        ResourceError: if the file cannot be written.
    """
    done = [key for key in keys if store.state(key) == "done"]
    lines = [to_line({"format": "runs", "version": VERSION, "runs": len(done)})]
    for key in done:
        record = store.record(key)
        if record is None:
            raise DamagedError(f"{store.directory(key)} was removed while it was read")
        attention = store.attention(key) if key in shown and "maps" not in without else None
        samples = store.samples(key) if key in shown and "samples" not in without else None
        directory = store.directory(key)
        journal = directory / JOURNAL_NAME
        lines.append(
            to_line(
                {
                    "run_key": key,
                    CONFIG_NAME: (directory / CONFIG_NAME).read_text("utf-8"),
                    JOURNAL_NAME: journal.read_text("utf-8") if journal.exists() else None,
                    RECORD_NAME: to_json(record).decode(),
                    "attention": _to_text(attention),
                    "samples": _to_text(samples),
                }
            )
        )
    write_output(path, lzma.compress(b"".join(lines), preset=6))
    return len(done)


def unpack_runs(path: Path, store: Store) -> Unpacked:
    """Add the runs in a file to a store, which keeps what it holds already.

    Args:
        path: A file that ``pack_runs`` wrote.
        store: The store.

    Raises:
        UsageError: if the file cannot be read.
        DamagedError: if the file is damaged or cut; the runs before the damage are in the store.
        BusyError: if another process trains one of the runs.
        ResourceError: if the store cannot be written.
    """
    counts = [0, 0]
    try:
        expected = _unpack(path, store, counts)
    except DamagedError as error:
        before = count(sum(counts), "run")
        raise DamagedError(f"{error}; added before it: {before}, in {store.path}") from None
    if sum(counts) != expected:
        raise DamagedError(
            f"{path} is cut: expected {expected} runs, got {sum(counts)}, which are in {store.path}"
        )
    return Unpacked(added=counts[1], present=counts[0])


def _unpack(path: Path, store: Store, counts: list[int]) -> int:
    """Add the runs, count those present and those added; return the number that the file names."""
    with lzma.open(BytesIO(read_file(path))) as file:
        lines = _lines(file, path)
        expected = _read_header(next(lines, {}), path)
        for number, fields in enumerate(lines, start=1):
            if number > expected:
                raise DamagedError(f"{path} holds more runs than the {expected} that it names")
            counts[_add(fields, store, path)] += 1
    return expected


def _lines(file: lzma.LZMAFile, path: Path) -> Iterator[dict[str, Any]]:
    try:
        while line := file.readline(MOST_LINE_BYTES):
            yield from_line(line.removesuffix(b"\n"))
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise DamagedError(f"{path} is not a valid file of packed runs: {error}") from None


def _read_header(fields: Mapping[str, Any], path: Path) -> int:
    number = fields.get("runs")
    if fields.get("format") != "runs" or fields.get("version") != VERSION:
        raise DamagedError(f"expected runs packed in version {VERSION}, got {path}")
    if type(number) is not int or number < 0:
        raise DamagedError(f"expected {path} to name its number of runs, got {number!r}")
    return number


def _add(fields: Mapping[str, Any], store: Store, path: Path) -> bool:
    """Add one run; return whether it was missing."""
    try:
        key, config = fields["run_key"], cast("dict[str, Any]", decode(fields[CONFIG_NAME]))
        record = from_json(fields[RECORD_NAME].encode(), where=f"{path}, run {key}")
        _check_run(key, config, record)
        text = fields[JOURNAL_NAME]
        journal = None if text is None else text.encode()
        # Runs that were packed by earlier versions have no samples.
        attention, samples = (
            None if text is None else b64decode(text, validate=True)
            for text in (fields["attention"], fields.get("samples"))
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} holds a run that cannot be read: {error}") from None
    claim = store.claim(key, config)
    if claim is None:
        return False
    try:
        if journal is not None:
            atomic_write_file(claim.directory / JOURNAL_NAME, journal)
        claim.finish(record, attention=attention, samples=samples)
    except BaseException:
        claim.release()
        raise
    return True


def _to_text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _check_run(key: str, config: dict[str, Any], record: Record) -> None:
    if config["run_key"] != key or record.run_key != key:
        raise ValueError("configuration and record are of different runs")
    if config["run"] != record.config:
        raise ValueError("configuration and record differ")
