"""Tensors of a checkpoint that lie in several files: each process writes the rows that it has.

A checkpoint has one file of whole tensors of each kind, ``weights.safetensors`` and
``optimizer.safetensors``. Where processes share the tensors by rows, those lie in one further file
for each process (``weights-00001-of-00004.safetensors``), one below the other, and the manifest
says how many rows of each tensor each file has. So whoever reads may be another number of
processes: each of them picks its rows out of the files that hold them.

Knows no processes; they are numbers here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from qkvary.checkpoints.tensor_files import Entry, contents_of, read_tensors
from qkvary.storage.checkpoint_folders import FileContents
from qkvary.storage.errors import DamagedError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import Manifest

Kind = Literal["weights", "optimizer"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Tensors = Mapping[Kind, Mapping[str, Tensor]]
"""Tensors by kind and name."""

RowCounts = Mapping[str, Mapping[str, int]]
"""How many rows of each shared tensor a process has, by kind and name."""

Wanted = Callable[[Kind, str, int], range]
"""Which of so many rows of a tensor are wanted."""

_NOTE = "shards"


def every_row(_kind: Kind, _name: str, rows: int) -> range:
    """Want all."""
    return range(rows)


def _whole_file(kind: Kind) -> str:
    return f"{kind}.safetensors"


def _shard_file(kind: Kind, number: int, count: int) -> str:
    return f"{kind}-{number + 1:05d}-of-{count:05d}.safetensors"


def whole_contents(tensors: Tensors) -> dict[str, FileContents]:
    """Return the files of whole tensors."""
    return {_whole_file(kind): contents_of(tensors[kind]) for kind in KINDS}


def shard_contents(tensors: Tensors, *, number: int, count: int) -> dict[str, FileContents]:
    """Return the files of one process.

    Args:
        tensors: Its rows of every shared tensor.
        number: Its own number, counted from 0: rows follow in the order of the processes.
        count: How many processes there are.
    """
    return {_shard_file(kind, number, count): contents_of(tensors[kind]) for kind in KINDS}


def row_counts(tensors: Tensors) -> dict[str, dict[str, int]]:
    """Return how many rows of each tensor there are."""
    return {kind: {name: len(tensor) for name, tensor in tensors[kind].items()} for kind in KINDS}


def shards_note(counts: Sequence[RowCounts]) -> dict[str, JsonValue]:
    """Return what the manifest has to say of the files of all processes, in their order."""
    rows = {
        kind: {name: [count[kind][name] for count in counts] for name in counts[0][kind]}
        for kind in KINDS
    }
    return {_NOTE: {"count": len(counts), "rows": rows}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One of the processes that read a checkpoint."""

    number: int = 0
    """Counted from 0."""
    count: int = 1
    """How many there are."""
    wanted: Wanted = every_row
    """What this one needs."""

    def read(self, folder: Path, manifest: Manifest) -> dict[Kind, dict[str, Tensor]]:
        """Return the wanted rows of every tensor, on the CPU; no rows come as an empty tensor.

        Files in which nothing is wanted are shared out among the readers, who only check them.

        Raises:
            DamagedError: if a file that was read is not the listed one.
        """
        note = _parse_note(manifest)
        return {
            kind: {
                **self._read_whole(folder, manifest, kind),
                **self._read_shards(folder, manifest, kind, note),
            }
            for kind in KINDS
        }

    def _read_whole(self, folder: Path, manifest: Manifest, kind: Kind) -> dict[str, Tensor]:
        def choose(entry: Entry) -> range:
            return self.wanted(kind, entry.name, entry.shape[0])

        with manifest.open(folder, _whole_file(kind)) as file:
            return read_tensors(file, choose)

    def _read_shards(
        self, folder: Path, manifest: Manifest, kind: Kind, note: _Note
    ) -> dict[str, Tensor]:
        listed = note.rows[kind]
        wanted = {name: self.wanted(kind, name, sum(counts)) for name, counts in listed.items()}
        pieces: dict[str, list[Tensor]] = {name: [] for name in listed}
        for number in range(note.count):
            shard = _Shard(
                name=_shard_file(kind, number, note.count),
                rows={name: counts[number] for name, counts in listed.items()},
                wanted={name: _part(listed[name], number, wanted[name]) for name in listed},
            )
            if any(shard.wanted.values()) or number % self.count == self.number:
                for name, tensor in shard.read(folder, manifest).items():
                    pieces[name].append(tensor)
        return {name: _joined(pieces.pop(name)) for name in listed}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    """The file of one process."""

    name: str
    rows: Mapping[str, int]
    """How many rows of each tensor it has."""
    wanted: Mapping[str, range]
    """Which of them are wanted."""

    def read(self, folder: Path, manifest: Manifest) -> dict[str, Tensor]:
        with manifest.open(folder, self.name) as file:
            tensors = read_tensors(file, lambda entry: self._choose(folder, entry))
        if {name: tensor.shape[:1] for name, tensor in tensors.items()} != {
            name: (len(rows),) for name, rows in self.wanted.items()
        }:
            raise self._unlike_list(folder)
        return {name: tensor for name, tensor in tensors.items() if len(tensor)}

    def _choose(self, folder: Path, entry: Entry) -> range:
        if entry.shape[0] != self.rows.get(entry.name):
            raise self._unlike_list(folder)
        return self.wanted[entry.name]

    def _unlike_list(self, folder: Path) -> DamagedError:
        return DamagedError(f"{folder / self.name} does not hold the rows that are listed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """What a manifest says of the files of processes."""

    count: int = 0
    rows: Mapping[Kind, Mapping[str, Sequence[int]]]


def _parse_note(manifest: Manifest) -> _Note:
    note = cast("dict[str, Any] | None", manifest.about.get(_NOTE))
    if note is None:
        return _Note(rows={kind: {} for kind in KINDS})
    return _Note(count=note["count"], rows={kind: note["rows"][kind] for kind in KINDS})


def _part(counts: Sequence[int], number: int, wanted: range) -> range:
    """Which rows of file ``number`` are among the wanted ones of the whole tensor."""
    first, rows = sum(counts[:number]), counts[number]
    start = min(max(wanted.start - first, 0), rows)
    return range(start, max(start, min(wanted.stop - first, rows)))


def _joined(pieces: list[Tensor]) -> Tensor:
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat(pieces) if pieces else torch.empty(0)
