"""Packs finished runs into a file, and adds the runs of such a file to a store.

The first line of a file states the number of runs; each run is a line with its own digest.
Torch-free.
"""

from __future__ import annotations

import lzma
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, cast, get_args

from qkvary.storage.durable import atomic_write_file, write_output
from qkvary.storage.errors import DamagedError
from qkvary.storage.journal import from_line, to_line
from qkvary.storage.jsonvalues import decode
from qkvary.storage.untrusted_files import FREE_BYTES, LARGEST_RATIO, read_file
from qkvary.studies.records import Record, from_json, to_json
from qkvary.studies.running.store import (
    ATTENTION_NAME,
    CONFIG_NAME,
    JOURNAL_NAME,
    RECORD_NAME,
    SAMPLES_NAME,
    RunResult,
    Store,
)
from qkvary.text.names import count

Extra = Literal["maps", "samples"]
"""The parts that an archive of runs may omit: attention maps and samples."""
EXTRAS: frozenset[Extra] = frozenset(get_args(Extra))
VERSION = 1
MOST_LINE_BYTES = 1 << 28
"""Maximum number of bytes of a line; a longer line is not a run."""


def pack_runs(
    store: Store,
    keys: Sequence[str],
    path: Path,
    *,
    shown: Sequence[str] = (),
    without: Collection[Extra] = (),
) -> int:
    """Write the finished runs among ``keys`` to a file; return their number.

    Attention maps and samples are written only for the ``shown`` runs. If ``without`` names one of
    these two parts, it is written for no run.
    """
    done = [key for key in keys if store.state(key) == "done"]
    lines = [to_line({"format": "runs", "version": VERSION, "runs": len(done)})]
    kept = EXTRAS - set(without)
    lines += [_pack_run(store, key, kept if key in shown else ()) for key in done]
    write_output(path, lzma.compress(b"".join(lines), preset=6))
    return len(done)


def _pack_run(store: Store, key: str, extras: Collection[Extra]) -> bytes:
    """Return the line of a finished run."""
    record, directory = store.record(key), store.directory(key)
    if record is None:
        raise DamagedError(f"{directory} was removed while it was read")
    journal = directory / JOURNAL_NAME
    return to_line(
        {
            "run_key": key,
            CONFIG_NAME: (directory / CONFIG_NAME).read_text("utf-8"),
            JOURNAL_NAME: journal.read_text("utf-8") if journal.exists() else None,
            RECORD_NAME: to_json(record).decode(),
            "attention": _to_text(store.file(key, ATTENTION_NAME) if "maps" in extras else None),
            "samples": _to_text(store.file(key, SAMPLES_NAME) if "samples" in extras else None),
        }
    )


def unpack_runs(path: Path, store: Store) -> tuple[int, int, int]:
    """Add the runs in a file to a store; nothing in the store is replaced.

    A run that the store has already gets the maps and samples that it lacks. If the file is damaged
    or cut, the runs before the damage are added.

    Returns:
        The number of added runs, the number of runs that the store had already, and the number of
        these that got maps or samples.
    """
    added = present = completed = 0
    try:
        for run in read_runs(read_file(path), str(path)):
            is_new = _add_run(run, store)
            added, present = added + is_new, present + (not is_new)
            completed += not is_new and store.complete(run)
    except DamagedError as error:
        before = count(added, "run")
        raise DamagedError(f"{error}; before this error, {before} went into {store.path}") from None
    return added, present, completed


def _add_run(run: FinishedRun, store: Store) -> bool:
    """Add a run unless the store has it; return whether it was added."""
    claim = store.claim(run.config)
    if claim is None:
        return False
    with claim:
        if run.journal is not None:
            atomic_write_file(claim.directory / JOURNAL_NAME, run.journal)
        claim.finish(run)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun(RunResult):
    """A finished run outside a store, without its networks."""

    config: Mapping[str, Any]
    journal: bytes | None
    """The log, if the run has one."""


def read_runs(data: bytes, where: str) -> Iterator[FinishedRun]:
    """Yield the packed runs in ``data``; each run is checked first."""
    with lzma.open(BytesIO(data)) as file:
        lines = _lines(file, max(FREE_BYTES, LARGEST_RATIO * len(data)), where)
        header, number = next(lines, {}), 0
        if header.get("format") != "runs" or header.get("version") != VERSION:
            raise DamagedError(f"expected packed runs of version {VERSION}, got {where}")
        expected = header.get("runs")
        if type(expected) is not int or expected < 0:
            raise DamagedError(f"expected the number of runs in {where}, got {expected!r}")
        for number, fields in enumerate(lines, start=1):
            if number > expected:
                raise DamagedError(f"{where} holds more runs than the {expected} that it states")
            yield _read_run(fields, where)
    if number != expected:
        raise DamagedError(f"{where} is cut: expected {expected} runs, got {number}")


def _lines(file: lzma.LZMAFile, limit: int, where: str) -> Iterator[dict[str, Any]]:
    try:
        while line := file.readline(min(limit, MOST_LINE_BYTES) + 1):
            limit -= len(line)
            yield _read_line(line, limit)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise DamagedError(f"expected packed runs in {where}, got damaged data ({error})") from None


def _read_line(line: bytes, bytes_left: int) -> dict[str, Any]:
    if bytes_left < 0 or len(line) > MOST_LINE_BYTES:
        raise ValueError("the file expands to more bytes than the limit for packed runs")
    return from_line(line.removesuffix(b"\n"))


def _read_run(fields: Mapping[str, Any], where: str) -> FinishedRun:
    try:
        key, config = fields["run_key"], cast("dict[str, Any]", decode(fields[CONFIG_NAME]))
        record = from_json(fields[RECORD_NAME].encode(), where=f"{where}, run {key}")
        _check_run(key, config, record)
        journal = fields[JOURNAL_NAME]
        return FinishedRun(
            config=config,
            record=record,
            journal=None if journal is None else journal.encode(),
            attention=_from_text(fields["attention"]),
            samples=_from_text(fields["samples"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"{where} holds a run that cannot be read: {error}") from None


def _check_run(key: str, config: dict[str, Any], record: Record) -> None:
    if config["run_key"] != key or record.run_key != key:
        raise ValueError("configuration and record belong to different runs")
    if config["run"] != record.config:
        raise ValueError("configuration and record differ")


def _to_text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _from_text(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)
