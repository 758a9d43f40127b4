"""The store of runs: one self-contained folder per run, named by the run's key.

A run is *done* once its ``record.json`` exists (this file is written last). It is *running* while a
process holds its lock, and *open* otherwise. There is no index and no server: several processes can
use one store at once. Torch-free.

    RUNS/<first two digits>/<run key>/config.json          the run's configuration
                                      metrics.jsonl        the log, one event per line
                                      attention.safetensors  attention maps of one example
                                      samples.safetensors  questions with the network's answers
                                      network/             the trained network, if it is kept
                                      network-at-100/      the network after 100 steps, if kept
                                      MANIFEST.json        sizes and digests, networks excepted
                                      record.json          the result; written last
                                      run.lock             the owner, and owners that died
                                      checkpoints/         until the run is done
                                      damaged-1/           damaged files, if there were any
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

from qkvary.arch.canonical import canonical_json, from_dict
from qkvary.arch.labels import format_label
from qkvary.data.checkpoint_names import NETWORK_NAME
from qkvary.storage.durable import (
    TEMPORARY_PREFIX,
    Owner,
    OwnerLock,
    atomic_write_file,
    clean_leftovers,
    is_held,
    make_directory,
    quarantine,
    read_owner,
    refuse_files,
    remove_dir,
    remove_file,
)
from qkvary.storage.errors import BusyError, DamagedError, UnsafeError
from qkvary.storage.journal import JOURNAL_NAME, parse_journal
from qkvary.storage.jsonvalues import decode, encode
from qkvary.storage.manifest import (
    CHECKPOINTS_NAME,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    describe,
    read_manifest,
    stored_steps,
)
from qkvary.storage.untrusted_files import StrPath, read_path
from qkvary.studies.records import Record, from_json, to_json
from qkvary.training.config import ExecutionConfig, ExecutionSettings, RunConfig

State = Literal["open", "running", "done"]

CONFIG_NAME = "config.json"
RECORD_NAME = "record.json"
ATTENTION_NAME = "attention.safetensors"
SAMPLES_NAME = "samples.safetensors"
LOCK_NAME = "run.lock"

_KEY = re.compile(r"[0-9a-f]{64}")


class Store:
    """All runs in one folder. The folder need not exist yet."""

    def __init__(self, path: StrPath) -> None:
        """Open the store at ``path``."""
        self.path = read_path(path, "the folder of runs")
        refuse_files(self.path)

    def directory(self, key: str) -> Path:
        """Return the folder of one run, which may not exist yet."""
        if not _KEY.fullmatch(key):
            raise UnsafeError(f"expected a run key of 64 hexadecimal digits, got {key!r}")
        return self.path / key[:2] / key

    def state(self, key: str) -> State:
        """Return the state of a run, without validating its files."""
        directory = self.directory(key)
        if (directory / RECORD_NAME).exists():
            return "done"
        return "running" if is_held(directory / LOCK_NAME) else "open"

    def owner(self, key: str) -> Owner | None:
        """Return the owner of a run's lock, or None."""
        lock = self.directory(key) / LOCK_NAME
        return read_owner(lock) if is_held(lock) else None

    def keys(self) -> tuple[str, ...]:
        """Return the keys of all runs that have a folder, sorted."""
        found = self.path.glob("[0-9a-f][0-9a-f]/*") if self.path.is_dir() else ()
        return tuple(sorted(path.name for path in found if _KEY.fullmatch(path.name)))

    def record(self, key: str) -> Record | None:
        """Return the record of a run, or None if the run is not done."""
        directory = self.directory(key)
        if not (directory / RECORD_NAME).exists():
            return None
        return self._read_record(key, read_manifest(directory))

    def _read_record(self, key: str, manifest: Manifest) -> Record:
        directory = self.directory(key)
        data = manifest.read(directory, RECORD_NAME)
        record = from_json(data, where=str(directory / RECORD_NAME))
        if record.run_key != key:
            raise DamagedError(f"{directory} holds the record of another run, {record.run_key}")
        return record

    def describe(self, key: str) -> str | None:
        """Return the task and the variant of a run that has begun, or None if they are unknown."""
        try:
            stored = decode((self.directory(key) / CONFIG_NAME).read_bytes())
            run = from_dict(RunConfig, cast("dict[str, Any]", stored)["run"])
            return f"{run.task.name} {format_label(run.network.variant)}"
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def log_events(self, key: str) -> list[dict[str, Any]]:
        """Return the logged events of a run so far, in order."""
        path = self.directory(key) / JOURNAL_NAME
        if self.state(key) == "done":
            data = self.file(key, JOURNAL_NAME)
        else:
            data = path.read_bytes() if path.exists() else None
        return list(parse_journal(data or b"", where=str(path)).events)

    def file(self, key: str, name: str) -> bytes | None:
        """Return the bytes of a file of a finished run, or None if the run has no such file."""
        directory = self.directory(key)
        if not (directory / RECORD_NAME).exists():
            return None
        manifest = read_manifest(directory)
        return manifest.read(directory, name) if name in manifest.files else None

    def network(self, key: str, step: int | None = None) -> Path | None:
        """Return the path of a finished run's network after ``step`` steps, or after all steps.

        Return None if that network was not kept.
        """
        directory = self.directory(key)
        path = directory / network_name(step)
        return path if (directory / RECORD_NAME).exists() and path.exists() else None

    def find_damage(self, key: str, *, with_networks: bool = True) -> str | None:
        """Validate the files of a finished run; return a description of any damage, else None."""
        directory = self.directory(key)
        if not (directory / RECORD_NAME).exists():
            return None
        try:
            manifest = read_manifest(directory)
            self._read_record(key, manifest)
            manifest.check(directory)
            for network in network_names(directory) if with_networks else ():
                read_manifest(directory / network).check(directory / network)
        except (DamagedError, UnsafeError) as error:
            return str(error)
        return None

    def version(self, key: str) -> int | None:
        """Return a number that changes when a run is recorded again; None for an unfinished run."""
        try:
            return (self.directory(key) / RECORD_NAME).stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def newest_step(self, key: str) -> int:
        """Return the step of a run's newest checkpoint, or 0 if it has none."""
        return max(stored_steps(self.directory(key) / CHECKPOINTS_NAME), default=0)

    def claim(self, config: Mapping[str, Any], *, again: int | None = None) -> "Claim | None":
        """Claim the open run of a configuration for this process; return None for a done run.

        A damaged run is reopened: its files are quarantined, and the claim has a warning. To
        claim a finished run again, pass the version of its record as ``again``.

        Raises:
            BusyError: if another process has the run.
        """
        key: str = config["run_key"]
        directory = self.directory(key)
        make_directory(directory)
        lock = OwnerLock(directory / LOCK_NAME, progress=lambda: f"step {self.newest_step(key)}")
        try:
            # Checked after locking, because another process may have just finished the run.
            problem = self.find_damage(key)
            done = (directory / RECORD_NAME).exists() and problem is None
            if done and (again is None or again != self.version(key)):
                if not self.is_clean(key):
                    clean_up(directory)
                lock.release()
                return None
            return Claim(self, key, config, lock, _restore(directory, config, problem, done))
        except BaseException:
            lock.release()
            raise

    def complete(self, result: "RunResult") -> bool:
        """Add the maps and samples that a finished run lacks; return whether any was added.

        Nothing is added if the record in the store differs from that of ``result``.
        """
        directory = self.directory(result.record.run_key)
        lock = OwnerLock(directory / LOCK_NAME)
        try:
            manifest = read_manifest(directory)
            is_same = manifest.files[RECORD_NAME] == FileEntry.of(to_json(result.record))
            extras = result.extras if is_same else {}
            added = {name: data for name, data in extras.items() if name not in manifest.files}
            for name, data in added.items():
                atomic_write_file(directory / name, data)
            if added:
                whole = replace(manifest, files={**manifest.files, **describe(added).files})
                atomic_write_file(directory / MANIFEST_NAME, whole.to_json())
        finally:
            lock.release()
        return bool(added)

    def check(self, config: Mapping[str, Any]) -> tuple[Record | None, tuple[str, ...]]:
        """Return the record of a finished run, or None, and descriptions of damage.

        A damaged run is reopened. If a finished run has leftovers of a killed process, they are
        removed.
        """
        key: str = config["run_key"]
        if self.state(key) != "done":
            return None, ()
        problem = self.find_damage(key)
        if problem is not None or not self.is_clean(key):
            with suppress(BusyError):
                claim = self.claim(config)
                if claim is not None:
                    claim.release()
                    return None, claim.warnings
        return (None if problem else self.record(key)), ()

    def is_clean(self, key: str) -> bool:
        """Return whether the checkpoints and temporary files of a finished run have been removed.

        A diverged run keeps its checkpoints, for inspection.
        """
        directory = self.directory(key)
        left = (directory / CHECKPOINTS_NAME).exists() or any(
            directory.glob(f"{TEMPORARY_PREFIX}*")
        )
        record = self.record(key) if left else None
        return not left or (record is not None and record.status == "diverged")


def network_name(step: int | None = None) -> str:
    """Return the folder name of the network after ``step`` steps, or after all steps."""
    return NETWORK_NAME if step is None else f"{NETWORK_NAME}-at-{step}"


def network_names(directory: Path) -> list[str]:
    """Return the names of the folders with a run's networks."""
    found = sorted(path.name for path in directory.glob(f"{NETWORK_NAME}-at-*/"))
    return [NETWORK_NAME, *found] if (directory / NETWORK_NAME).exists() else found


def clean_up(directory: Path) -> None:
    """Remove the checkpoints and temporary files of a finished run.

    Only the owner of the run may call this function.
    """
    clean_leftovers(directory)
    if (directory / CHECKPOINTS_NAME).exists():
        remove_dir(directory / CHECKPOINTS_NAME)


def config_bytes(config: Mapping[str, Any]) -> bytes:
    """Return the bytes of ``config.json``."""
    return (encode(config, indent=1) + "\n").encode()


def read_identity(config: bytes) -> tuple[str, ExecutionSettings | None]:
    """Return the identity and the execution settings of the run in a ``config.json``.

    The identity does not include the execution settings. If the configuration is damaged, return an
    empty identity and None.
    """
    try:
        found = cast("dict[str, Any]", decode(config))
        run = from_dict(RunConfig, found["run"])
        plain = run.with_execution_settings(
            ExecutionSettings(config=ExecutionConfig(), device="cpu")
        )
        named = [
            canonical_json(plain, identity=True),
            found["data_fingerprint"],
            found["numerics_version"],
        ]
        return encode(named), run.execution_settings
    except (ValueError, TypeError, KeyError, AttributeError):
        return "", None


def _restore(
    directory: Path, config: Mapping[str, Any], problem: str | None, done: bool
) -> tuple[str, ...]:
    """Prepare a run's folder, locked by the caller, for training; return warnings."""
    clean_leftovers(directory)
    warnings: list[str] = []
    # Remove the record first: without it the run is open, even if the next lines fail.
    files = (RECORD_NAME, MANIFEST_NAME, ATTENTION_NAME, SAMPLES_NAME)
    if problem is not None:
        # A diverged run resumes from its checkpoints, and needs its log.
        log = () if (directory / CHECKPOINTS_NAME).exists() else (JOURNAL_NAME,)
        folder = quarantine(directory, (*files, *network_names(directory), *log))
        warnings.append(f"{problem}; the run is repeated, and the damaged files are in {folder}")
    elif done:
        for name in (*files, JOURNAL_NAME):
            remove_file(directory / name)
        for name in network_names(directory):
            remove_dir(directory / name)
        clean_up(directory)
    elif (directory / MANIFEST_NAME).exists():
        # Killed between the manifest and the record, or the record was deleted.
        warnings.append(f"{directory / RECORD_NAME} is missing; the run is resumed")
        for name in (MANIFEST_NAME, ATTENTION_NAME, SAMPLES_NAME):
            remove_file(directory / name)
    path = directory / CONFIG_NAME
    expected = config_bytes(config)
    found = path.read_bytes() if path.exists() else None
    if found != expected:
        # The same data may have another path now.
        if found is not None and read_identity(found) != read_identity(expected):
            warnings.append(f"{path} was changed; it is rewritten")
        atomic_write_file(path, expected)
    return tuple(warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run, with its attention maps and samples if it has any."""

    record: Record
    attention: bytes | None = None
    samples: bytes | None = None

    @property
    def extras(self) -> dict[str, bytes]:
        """The attention maps and samples, by the names of their files."""
        found = {ATTENTION_NAME: self.attention, SAMPLES_NAME: self.samples}
        return {name: data for name, data in found.items() if data is not None}


@dataclass(slots=True)
class Claim:
    """A run that this process owns until ``release``, ``finish`` or the end of a ``with`` block."""

    store: Store
    key: str
    config: Mapping[str, Any]
    lock: OwnerLock
    warnings: tuple[str, ...]
    """Descriptions of the damage that was found."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def directory(self) -> Path:
        """The run's folder."""
        return self.store.directory(self.key)

    @property
    def deaths(self) -> int:
        """Number of owners that died since the run was last released or last wrote a checkpoint."""
        return self.lock.deaths

    def restart(self) -> Path:
        """Quarantine the log and the damaged checkpoints; return the folder they are moved to."""
        # The log first: if this is interrupted, the damaged checkpoints are found again.
        return quarantine(self.directory, (JOURNAL_NAME, CHECKPOINTS_NAME))

    def finish(self, result: RunResult) -> None:
        """Write the record and release the run; if the disk fails, the run stays open."""
        directory, record = self.directory, result.record
        files = {CONFIG_NAME: config_bytes(self.config), RECORD_NAME: to_json(record)}
        if (directory / JOURNAL_NAME).exists():
            files[JOURNAL_NAME] = (directory / JOURNAL_NAME).read_bytes()
        for name, data in result.extras.items():
            files[name] = data
            atomic_write_file(directory / name, data)
        atomic_write_file(directory / MANIFEST_NAME, describe(files).to_json())
        atomic_write_file(directory / RECORD_NAME, files[RECORD_NAME])
        if record.status != "diverged":
            clean_up(directory)
        self.release()

    def release(self) -> None:
        """Release the run; its log and checkpoints remain. Further calls do nothing."""
        self.lock.release()
