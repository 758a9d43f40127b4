"""The store of runs: one folder for each, named by the run's key, that owns itself.

A run is *done* when its ``record.json`` was renamed into place, which happens last; *running* while
somebody holds its lock; *open* otherwise. There is no index and no server: two people may work on
one store at once, and every file can be read with any editor. Torch-free.

    RUNS/<first two digits>/<run key>/config.json          what the run is
                                      metrics.jsonl        how it went, one event per line
                                      attention.safetensors  attention on one example
                                      network/             the trained network, if it is kept
                                      MANIFEST.json        sizes and digests of all files
                                      record.json          how it ended; written last
                                      run.lock             who is at work
                                      checkpoints/         only while it is not done
                                      damaged-1/           what was found damaged, if anything was
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qkvary.storage.durable import (
    atomic_write_file,
    clean_leftovers,
    make_directory,
    quarantine,
    remove_dir,
    remove_file,
)
from qkvary.storage.errors import DamagedError, UnsafeError, UsageError
from qkvary.storage.journal import parse_journal
from qkvary.storage.jsonvalues import encode
from qkvary.storage.locks import Owner, OwnerLock, is_held, read_owner
from qkvary.storage.manifest import MANIFEST_NAME, describe, read_manifest
from qkvary.studies.running.attention_maps import AttentionMaps, from_bytes
from qkvary.studies.running.records import Record, from_json, to_json

State = Literal["open", "running", "done"]

CONFIG_NAME = "config.json"
JOURNAL_NAME = "metrics.jsonl"
RECORD_NAME = "record.json"
ATTENTION_NAME = "attention.safetensors"
NETWORK_NAME = "network"
LOCK_NAME = "run.lock"
CHECKPOINTS_NAME = "checkpoints"

_KEY = re.compile(r"[0-9a-f]{64}")


class Store:
    """All runs below one folder, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        """Look into a folder.

        Raises:
            UsageError: if there is something else in its place.
        """
        with suppress(OSError):
            if path.is_file():
                raise UsageError(f"expected a folder of runs, got {path}, which is a file")
        self.path = path

    def directory(self, key: str) -> Path:
        """Return the folder of one run, which need not exist.

        Raises:
            UnsafeError: if ``key`` is not a run key.
        """
        if not _KEY.fullmatch(key):
            raise UnsafeError(f"{key!r} is no run key: expected 64 hexadecimal digits")
        return self.path / key[:2] / key

    def state(self, key: str) -> State:
        """Return where a run stands. A glance: nothing is checked, only looked for."""
        directory = self.directory(key)
        if (directory / RECORD_NAME).exists():
            return "done"
        return "running" if is_held(directory / LOCK_NAME) else "open"

    def owner(self, key: str) -> Owner | None:
        """Return who is at work on a run, or None if nobody is."""
        lock = self.directory(key) / LOCK_NAME
        return read_owner(lock) if is_held(lock) else None

    def keys(self) -> tuple[str, ...]:
        """Return the keys of all runs that have a folder, sorted."""
        found = self.path.glob("[0-9a-f][0-9a-f]/*") if self.path.is_dir() else ()
        return tuple(sorted(path.name for path in found if _KEY.fullmatch(path.name)))

    def record(self, key: str) -> Record | None:
        """Return how a run ended, or None if it did not yet.

        Raises:
            DamagedError: if there is a record, but not the one that was written.
        """
        directory = self.directory(key)
        if not (directory / RECORD_NAME).exists():
            return None
        data = read_manifest(directory, required=(RECORD_NAME,)).read(directory, RECORD_NAME)
        record = from_json(data, where=str(directory / RECORD_NAME))
        if record.run_key != key:
            raise DamagedError(f"{directory} holds the record of another run, {record.run_key}")
        return record

    def curve(self, key: str) -> list[dict[str, Any]]:
        """Return the events of a run so far, in order; none if it was never begun.

        Raises:
            DamagedError: if the run is done and its log is not the one that was written.
        """
        directory = self.directory(key)
        if (directory / RECORD_NAME).exists():
            manifest = read_manifest(directory)
            if JOURNAL_NAME not in manifest.files:
                return []
            data = manifest.read(directory, JOURNAL_NAME)
        else:
            path = directory / JOURNAL_NAME
            data = path.read_bytes() if path.exists() else b""
        return list(parse_journal(data, where=str(directory / JOURNAL_NAME)).events)

    def attention(self, key: str) -> AttentionMaps | None:
        """Return the attention maps of a finished run, or None where it left none.

        Raises:
            DamagedError: if the file is not the one that was written.
        """
        directory = self.directory(key)
        if not (directory / RECORD_NAME).exists():
            return None
        manifest = read_manifest(directory)
        if ATTENTION_NAME not in manifest.files:
            return None
        return from_bytes(manifest.read(directory, ATTENTION_NAME))

    def network(self, key: str) -> Path | None:
        """Return the checkpoint of a finished run's network, or None where none was kept."""
        directory = self.directory(key)
        path = directory / NETWORK_NAME
        return path if (directory / RECORD_NAME).exists() and path.exists() else None

    def damage(self, key: str) -> str | None:
        """Read every file of a finished run, and say what is wrong; None if all is well.

        Raises:
            NewerFormatError: if a newer qkvary wrote the run: it is intact, but not for this one.
        """
        directory = self.directory(key)
        try:
            if self.record(key) is not None:
                read_manifest(directory).read_all(directory)
            network = self.network(key)
            if network is not None:
                read_manifest(network).read_all(network)
        except (DamagedError, UnsafeError) as error:
            return str(error)
        return None

    def claim(self, key: str, config: Mapping[str, Any], *, again: bool = False) -> Claim | None:
        """Take an open run for this process, or return None if it is done.

        A run whose files are damaged is open: it is made again, what there was is set aside, and
        the claim says why.

        Args:
            key: The run's key.
            config: What the run is, as JSON values.
            again: Whether a run that is done is to be made again.

        Raises:
            BusyError: if somebody else is at work on it; the message names them.
            ResourceError: if the store cannot be written.
            NewerFormatError: if a newer qkvary wrote the run.
        """
        directory = self.directory(key)
        make_directory(directory)
        lock = OwnerLock(directory / LOCK_NAME)
        try:
            # Only now: somebody may have finished the run before the lock was free.
            problem = self.damage(key)
            done = (directory / RECORD_NAME).exists() and problem is None
            if done and not again:
                self._tidy(key)
                lock.release()
                return None
            return Claim(self, key, config, lock, _restore(directory, config, problem, done))
        except BaseException:
            lock.release()
            raise

    def is_tidy(self, key: str) -> bool:
        """Return whether a finished run keeps nothing that it no longer needs."""
        return self._diverged(key) or not (self.directory(key) / CHECKPOINTS_NAME).exists()

    def _tidy(self, key: str) -> None:
        if not self._diverged(key):
            tidy(self.directory(key))

    def _diverged(self, key: str) -> bool:
        """Whether a run ended so; then the last checkpoint before it is kept, to look at."""
        record = self.record(key)
        return record is not None and record.status == "diverged"


def tidy(directory: Path) -> None:
    """Remove what a finished run no longer needs; its owner's business.

    Raises:
        ResourceError: if it cannot be removed.
    """
    clean_leftovers(directory)
    if (directory / CHECKPOINTS_NAME).exists():
        remove_dir(directory / CHECKPOINTS_NAME)


def _config_bytes(config: Mapping[str, Any]) -> bytes:
    return (encode(config, indent=1) + "\n").encode()


def _restore(
    directory: Path, config: Mapping[str, Any], problem: str | None, done: bool
) -> tuple[str, ...]:
    """Bring a folder that was just locked into the state of an open run; say what was wrong."""
    clean_leftovers(directory)
    warnings: list[str] = []
    # The record first: from there on the run is open, whatever happens.
    files = (RECORD_NAME, MANIFEST_NAME, ATTENTION_NAME)
    if problem is not None:
        # A run that diverged has checkpoints. It goes on from them, and needs its log.
        log = () if (directory / CHECKPOINTS_NAME).exists() else (JOURNAL_NAME,)
        place = quarantine(directory, (*files, NETWORK_NAME, *log))
        warnings.append(f"{problem}; the run is made again, and what there was is in {place}")
    elif done:
        for name in (*files, JOURNAL_NAME):
            remove_file(directory / name)
        for name in (NETWORK_NAME, CHECKPOINTS_NAME):
            if (directory / name).exists():
                remove_dir(directory / name)
    elif (directory / MANIFEST_NAME).exists():
        # Killed between the manifest and the record, or the record was taken away.
        warnings.append(f"{directory / RECORD_NAME} is missing; the run is taken up again")
        for name in (MANIFEST_NAME, ATTENTION_NAME):
            remove_file(directory / name)
    path = directory / CONFIG_NAME
    expected = _config_bytes(config)
    found = path.read_bytes() if path.exists() else None
    if found != expected:
        if found is not None:
            warnings.append(f"{path} was changed; it is written again")
        atomic_write_file(path, expected)
    return tuple(warnings)


@dataclass(slots=True)
class Claim:
    """A run that this process owns, until ``release``, ``finish`` or its death."""

    store: Store
    """Where the run is."""
    key: str
    """The run's key."""
    config: Mapping[str, Any]
    """What the run is."""
    lock: OwnerLock
    """What the ownership rests on."""
    warnings: tuple[str, ...]
    """What was found damaged, in sentences."""

    @property
    def directory(self) -> Path:
        """The run's folder."""
        return self.store.directory(self.key)

    def restart(self) -> Path:
        """Set aside everything that was done so far, for a run whose checkpoints are all damaged.

        Returns:
            The folder that has it now.

        Raises:
            ResourceError: if it cannot be moved.
        """
        # The log first: checkpoints that are still there are found damaged once more.
        return quarantine(self.directory, (JOURNAL_NAME, CHECKPOINTS_NAME))

    def finish(self, record: Record, *, attention: bytes | None = None) -> None:
        """Store how the run ended, and let go of it.

        Args:
            record: How it ended.
            attention: The bytes of its attention maps, if it has any.

        Raises:
            ResourceError: if the disk is full, broken or not writable; the run stays open.
        """
        directory = self.directory
        files = {CONFIG_NAME: _config_bytes(self.config), RECORD_NAME: to_json(record)}
        if (directory / JOURNAL_NAME).exists():
            files[JOURNAL_NAME] = (directory / JOURNAL_NAME).read_bytes()
        if attention is not None:
            files[ATTENTION_NAME] = attention
            atomic_write_file(directory / ATTENTION_NAME, attention)
        atomic_write_file(directory / MANIFEST_NAME, describe(files).to_json())
        atomic_write_file(directory / RECORD_NAME, files[RECORD_NAME])
        if record.status != "diverged":
            tidy(directory)
        self.release()

    def release(self) -> None:
        """Let others have the run; what was done so far stays."""
        self.lock.release()
