"""Shards checkpoint tensors by rows over several files, one file per process.

Unsharded tensors are in ``weights.safetensors`` and ``optimizer.safetensors``. Sharded tensors are
in one further file per process (``weights-00001-of-00004.safetensors``), and the manifest lists the
rows of each tensor in each file. So any number of processes can read a checkpoint: each process
reads its rows from the files that hold these rows.

Processes are known here only by their ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from qkvary.checkpoints.tensor_files import contents_of, read_tensors
from qkvary.storage.errors import DamagedError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import FileContents, Manifest

Kind = Literal["weights", "optimizer"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Tensors = Mapping[Kind, Mapping[str, Tensor]]

RowCounts = Mapping[str, Mapping[str, int]]
"""Number of rows of each sharded tensor that a process holds, by kind and name."""

Wanted = Callable[[Kind, str, int], range]
"""Returns the range of rows to read, given the kind, name and number of rows of a tensor."""

_SHARDS = "shards"


def _file(kind: Kind, number: int = 0, count: int = 0) -> str:
    """Return the name of the file of one process, or of the unsharded tensors (``count`` 0)."""
    return f"{kind}-{number + 1:05d}-of-{count:05d}.safetensors" if count else f"{kind}.safetensors"


def file_contents(tensors: Tensors, *, number: int = 0, count: int = 0) -> dict[str, FileContents]:
    """Return the contents of the files of a process, or of the unsharded tensors (``count`` 0)."""
    return {_file(kind, number, count): contents_of(tensors[kind]) for kind in KINDS}


def row_counts(tensors: Tensors) -> dict[str, dict[str, int]]:
    """Return the number of rows of each tensor of each kind."""
    return {kind: {name: len(tensor) for name, tensor in tensors[kind].items()} for kind in KINDS}


def shard_metadata(counts: Sequence[RowCounts]) -> dict[str, JsonValue]:
    """Return the entry of the manifest for the files of all processes, in order of rank."""
    rows = {
        kind: {name: [count[kind][name] for count in counts] for name in counts[0][kind]}
        for kind in KINDS
    }
    return {_SHARDS: {"count": len(counts), "rows": rows}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One of the processes that read a checkpoint."""

    number: int = 0
    count: int = 1
    wanted: Wanted = lambda _kind, _name, rows: range(rows)

    def read(self, folder: Path, manifest: Manifest) -> dict[Kind, dict[str, Tensor]]:
        """Return the requested rows of every tensor, on the CPU; a tensor may have 0 rows.

        Files without requested rows are only verified, each by one of the readers.
        """
        return {
            kind: {
                **read_tensors(
                    manifest.check_file(folder, _file(kind)), partial(self.wanted, kind)
                ),
                **self._read_shards(folder, manifest, kind),
            }
            for kind in KINDS
        }

    def _read_shards(self, folder: Path, manifest: Manifest, kind: Kind) -> dict[str, Tensor]:
        table = cast("dict[str, Any] | None", manifest.about.get(_SHARDS))
        if table is None:
            return {}
        listed: dict[str, list[int]] = table["rows"][kind]
        wanted = {name: self.wanted(kind, name, sum(counts)) for name, counts in listed.items()}
        pieces: dict[str, list[Tensor]] = {name: [] for name in listed}
        for number in range(table["count"]):
            parts = {name: _part(listed[name], number, wanted[name]) for name in listed}
            if any(parts.values()) or number % self.count == self.number:
                path = manifest.check_file(folder, _file(kind, number, table["count"]))
                found = read_tensors(
                    path, lambda name, _rows, chosen=parts: chosen.get(name, range(0))
                )
                if found.keys() != parts.keys():
                    raise DamagedError(f"{path} does not hold the tensors that the manifest lists")
                for name, tensor in found.items():
                    pieces[name] += [tensor] if len(tensor) else []
        return {name: _joined(pieces.pop(name)) for name in listed}


def _part(counts: Sequence[int], number: int, wanted: range) -> range:
    """Return the requested rows in file ``number``, as row indices within that file."""
    first, rows = sum(counts[:number]), counts[number]
    start = min(max(wanted.start - first, 0), rows)
    return range(start, max(start, min(wanted.stop - first, rows)))


def _joined(pieces: list[Tensor]) -> Tensor:
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat(pieces) if pieces else torch.empty(0)
