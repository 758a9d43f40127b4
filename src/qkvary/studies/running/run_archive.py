"""Finished runs in one compressed file, to keep with a report or to take to another machine.

The first line says how many runs there are; each run is a line with its own digest. Files have no
trained networks; the results that a cluster returns have those that the store keeps. Torch-free.
"""

from __future__ import annotations

import lzma
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, cast, get_args

from qkvary.costs.parameters import network_parameters
from qkvary.data.checkpoint_names import NETWORK_NAME
from qkvary.storage.durable import atomic_write_dir, atomic_write_file, write_output
from qkvary.storage.errors import DamagedError, UnsafeError, UsageError
from qkvary.storage.journal import from_line, to_line
from qkvary.storage.jsonvalues import JsonValue, decode
from qkvary.storage.manifest import describe
from qkvary.storage.untrusted_files import FREE_BYTES, LARGEST_RATIO, read_file
from qkvary.studies.running.records import Record, from_json, to_json
from qkvary.studies.running.store import (
    CONFIG_NAME,
    JOURNAL_NAME,
    RECORD_NAME,
    Store,
    network_names,
)
from qkvary.studies.study import Cell
from qkvary.text.names import count
from qkvary.text.units import data_size

Extra = Literal["maps", "samples"]
"""The parts that a file of runs may leave out: attention maps, or samples."""
EXTRAS: frozenset[Extra] = frozenset(get_args(Extra))
VERSION = 1
MOST_LINE_BYTES = 1 << 28
"""Bytes of a line; a longer one is no run."""
_WEIGHT_BYTES = 4
_NETWORK = re.compile(rf"{NETWORK_NAME}(-at-[0-9]+)?")


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
        keys: Keys of runs; unfinished ones are left out.
        path: The file, replaced if it exists.
        shown: Keys of the runs whose attention maps and samples are kept too.
        without: Which of these two are left out.

    Raises:
        DamagedError: if one of the runs is damaged.
        ResourceError: if the file cannot be written.
    """
    done = [key for key in keys if store.state(key) == "done"]
    lines = [_header(len(done))]
    for key in done:
        extras = EXTRAS - set(without) if key in shown else frozenset[Extra]()
        lines.append(to_line(_describe_run(store, key, extras)))
    write_output(path, lzma.compress(b"".join(lines), preset=6))
    return len(done)


def pack_results(store: Store, keys: Sequence[str]) -> bytes:
    """Return finished runs as ``read_runs`` reads them, with all that the store keeps of them.

    Args:
        store: The store that holds them.
        keys: Their keys.

    Raises:
        DamagedError: if one of the runs is damaged.
        UsageError: if the networks of a run are too large.
    """
    lines = [_header(len(keys))]
    for key in keys:
        line = _result_line(store, key)
        _check_size(len(line))
        lines.append(line)
    # The least effort: the weights of networks hardly get smaller.
    return lzma.compress(b"".join(lines), preset=0)


def _result_line(store: Store, key: str) -> bytes:
    directory = store.directory(key)
    networks: dict[str, JsonValue] = {}
    for name in network_names(directory):
        files = sorted((directory / name).iterdir())
        networks[name] = {file.name: _to_text(file.read_bytes()) for file in files}
    return to_line({**_describe_run(store, key, EXTRAS), "networks": networks})


def check_networks(cells: Iterable[Cell]) -> None:
    """Check that the networks that runs keep fit results, before the runs are executed.

    Args:
        cells: The runs.

    Raises:
        UsageError: if the networks of a run are too large.
    """
    for cell in cells:
        if cell.kept_networks:
            weights = network_parameters(cell.run.network).total * _WEIGHT_BYTES
            _check_size(weights * len(cell.kept_networks) * 4 // 3)


def find_excess(store: Store, key: str) -> str | None:
    """Return why a finished run is too large for a result; None if it fits.

    Args:
        store: The store that holds it.
        key: Its key.

    Raises:
        DamagedError: if the run is damaged.
    """
    try:
        _check_size(len(_result_line(store, key)))
    except UsageError as error:
        return str(error)
    return None


def _check_size(line_bytes: int) -> None:
    if line_bytes > MOST_LINE_BYTES:
        raise UsageError(
            f"expected a run whose result takes at most {data_size(MOST_LINE_BYTES)}, "
            f"got {data_size(line_bytes)}: leave out --no-shared-folder"
        )


def _header(runs: int) -> bytes:
    return to_line({"format": "runs", "version": VERSION, "runs": runs})


def _describe_run(store: Store, key: str, extras: Collection[Extra]) -> dict[str, JsonValue]:
    record = store.record(key)
    if record is None:
        raise DamagedError(f"{store.directory(key)} was removed while it was read")
    directory = store.directory(key)
    journal = directory / JOURNAL_NAME
    return {
        "run_key": key,
        CONFIG_NAME: (directory / CONFIG_NAME).read_text("utf-8"),
        JOURNAL_NAME: journal.read_text("utf-8") if journal.exists() else None,
        RECORD_NAME: to_json(record).decode(),
        "attention": _to_text(store.attention(key)) if "maps" in extras else None,
        "samples": _to_text(store.samples(key)) if "samples" in extras else None,
    }


def unpack_runs(path: Path, store: Store) -> Unpacked:
    """Add the runs in a file to a store, which keeps what it holds already.

    A run that the store holds without its maps or samples gets those of the file.

    Args:
        path: A file that ``pack_runs`` wrote.
        store: The store.

    Raises:
        UsageError: if the file cannot be read.
        DamagedError: if the file is damaged or cut; the runs before the damage are in the store.
        BusyError: if another process trains one of the runs.
        ResourceError: if the store cannot be written.
    """
    counts, data = [0, 0], read_file(path)
    try:
        for run in read_runs(data, str(path)):
            _refuse_networks(run, path)
            counts[_add_packed(run, store)] += 1
    except DamagedError as error:
        before = count(sum(counts), "run")
        raise DamagedError(f"{error}; added before it: {before}, in {store.path}") from None
    return Unpacked(added=counts[1], present=counts[0])


def _add_packed(run: PackedRun, store: Store) -> bool:
    key = run.record.run_key
    record, directory = store.record(key), store.directory(key)
    if record is None or store.state(key) != "done" or network_names(directory):
        return add_run(run, store)
    journal = directory / JOURNAL_NAME
    shown = (store.attention(key), store.samples(key))
    kept = PackedRun(
        config=run.config,
        record=record,
        journal=journal.read_bytes() if journal.exists() else None,
        attention=shown[0] or run.attention,
        samples=shown[1] or run.samples,
        networks={},
    )
    is_more = (kept.attention, kept.samples) != shown
    return add_run(kept, store, again=store.version(key)) if is_more else add_run(run, store)


def _refuse_networks(run: PackedRun, path: Path) -> None:
    if run.networks:
        raise DamagedError(f"{path} holds networks, which files of runs do not have")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRun:
    """A finished run that was packed."""

    config: Mapping[str, Any]
    """The configuration, as the store writes it."""
    record: Record
    """The record."""
    journal: bytes | None
    """The log, if it has one."""
    attention: bytes | None
    """Attention maps, if they were packed."""
    samples: bytes | None
    """Samples, if they were packed."""
    networks: Mapping[str, Mapping[str, bytes]]
    """The files of the networks that were packed, by the name of their folder."""


def read_runs(data: bytes, where: str) -> Iterator[PackedRun]:
    """Yield packed runs; each is checked first.

    Args:
        data: Packed runs.
        where: Their name in messages.

    Raises:
        DamagedError: if the data are damaged or cut.
    """
    with lzma.open(BytesIO(data)) as file:
        lines = _lines(file, max(FREE_BYTES, LARGEST_RATIO * len(data)), where)
        expected, number = _read_header(next(lines, {}), where), 0
        for number, fields in enumerate(lines, start=1):
            if number > expected:
                raise DamagedError(f"{where} holds more runs than the {expected} that it names")
            yield _read_run(fields, where)
    if number != expected:
        raise DamagedError(f"{where} is cut: expected {expected} runs, got {number}")


def add_run(run: PackedRun, store: Store, *, again: int | None = None) -> bool:
    """Add a run to a store; return whether it was missing.

    Args:
        run: The run.
        store: The store, which keeps a run that it holds already.
        again: The version of a record there that the run replaces.

    Raises:
        BusyError: if another process trains the run.
        ResourceError: if the store cannot be written.
    """
    claim = store.claim(run.record.run_key, run.config, again=again)
    if claim is None:
        return False
    try:
        if run.journal is not None:
            atomic_write_file(claim.directory / JOURNAL_NAME, run.journal)
        for name, files in run.networks.items():
            atomic_write_dir(claim.directory / name, files)
        claim.finish(run.record, attention=run.attention, samples=run.samples)
    except BaseException:
        claim.release()
        raise
    return True


def _lines(file: lzma.LZMAFile, limit: int, where: str) -> Iterator[dict[str, Any]]:
    try:
        while line := file.readline(min(limit, MOST_LINE_BYTES) + 1):
            limit -= len(line)
            yield _read_line(line, limit)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise DamagedError(f"expected packed runs in {where}, got damaged data ({error})") from None


def _read_line(line: bytes, bytes_left: int) -> dict[str, Any]:
    if bytes_left < 0 or len(line) > MOST_LINE_BYTES:
        raise ValueError("it expands to more than runs do")
    return from_line(line.removesuffix(b"\n"))


def _read_header(fields: Mapping[str, Any], where: str) -> int:
    number = fields.get("runs")
    if fields.get("format") != "runs" or fields.get("version") != VERSION:
        raise DamagedError(f"expected runs packed in version {VERSION}, got {where}")
    if type(number) is not int or number < 0:
        raise DamagedError(f"expected {where} to name its number of runs, got {number!r}")
    return number


def _read_run(fields: Mapping[str, Any], where: str) -> PackedRun:
    try:
        key, config = fields["run_key"], cast("dict[str, Any]", decode(fields[CONFIG_NAME]))
        record = from_json(fields[RECORD_NAME].encode(), where=f"{where}, run {key}")
        _check_run(key, config, record)
        journal = fields[JOURNAL_NAME]
        return PackedRun(
            config=config,
            record=record,
            journal=None if journal is None else journal.encode(),
            attention=_from_text(fields["attention"]),
            # Files of runs have no networks, those of earlier versions no samples.
            samples=_from_text(fields.get("samples")),
            networks=_read_networks(fields.get("networks", {})),
        )
    except (KeyError, ValueError, TypeError, AttributeError, UnsafeError) as error:
        raise DamagedError(f"{where} holds a run that cannot be read: {error}") from None


def _read_networks(fields: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, bytes]]:
    networks: dict[str, dict[str, bytes]] = {}
    for name, files in fields.items():
        if not _NETWORK.fullmatch(name):
            raise ValueError(f"unknown network {name!r}")
        networks[name] = {file: b64decode(text, validate=True) for file, text in files.items()}
        # It checks the names.
        describe(networks[name])
    return networks


def _to_text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _from_text(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)


def _check_run(key: str, config: dict[str, Any], record: Record) -> None:
    if config["run_key"] != key or record.run_key != key:
        raise ValueError("configuration and record are of different runs")
    if config["run"] != record.config:
        raise ValueError("configuration and record differ")
