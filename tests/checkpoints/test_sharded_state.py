"""Rows written by many processes are read by any number; all damage is detected."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from qkvary.checkpoints.sharded_state import (
    KINDS,
    Kind,
    Reader,
    Tensors,
    file_contents,
    row_counts,
    shard_metadata,
)
from qkvary.storage.errors import DamagedError
from qkvary.storage.manifest import (
    Manifest,
    checkpoint_directory,
    keep_newest,
    read_manifest,
    step_folder,
    write_checked,
    write_manifest,
)
from tests.storage.damage import damaged_copies, trials

SHAPES = {"a": (11, 3), "b": (7,), "one": (1, 5), "wide": (2, 13)}


def rows_of(rows: int, number: int, count: int) -> range:
    """As processes share rows: whole shares first, so that the last ones may have none."""
    share = -(-rows // count)
    return range(min(rows, number * share), min(rows, (number + 1) * share))


def tensors(step: int) -> dict[Kind, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(step)
    made = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    moments = {f"{n}.exp_avg": tensor * 0.1 for n, tensor in enumerate(made.values())}
    counts = {f"{n}.step": torch.tensor(float(step)) for n in range(len(made))}
    return {"weights": {**made, "scale": torch.tensor(2.5)}, "optimizer": {**moments, **counts}}


def save(directory: Path, step: int, count: int) -> None:
    """Write a checkpoint as ``count`` processes do."""
    every: list[Tensors] = [
        {
            kind: {
                name: tensor[rows.start : rows.stop]
                for name, tensor in tensors(step)[kind].items()
                if tensor.ndim
                for rows in [rows_of(len(tensor), number, count)]
            }
            for kind in KINDS
        }
        for number in range(count)
    ]
    single: Tensors = {
        kind: {name: tensor for name, tensor in tensors(step)[kind].items() if not tensor.ndim}
        for kind in KINDS
    }
    with checkpoint_directory(directory, step, 0) as folder:
        entries = write_checked(folder, file_contents(single))
        for number, mine in enumerate(every):
            entries |= write_checked(folder, file_contents(mine, number=number, count=count))
        note = shard_metadata([row_counts(mine) for mine in every])
        write_manifest(folder, step, entries, {"loss": float("nan"), **note})
    keep_newest(directory)


def reader(number: int, count: int) -> Reader:
    return Reader(
        number=number,
        count=count,
        wanted=lambda _kind, _name, rows: rows_of(rows, number, count),
    )


def read(directory: Path, step: int, count: int) -> list[dict[Kind, dict[str, Tensor]]]:
    folder = step_folder(directory, step)
    return [reader(number, count).read(folder, read_manifest(folder)) for number in range(count)]


@pytest.mark.parametrize("writers", [1, 3, 8, 13])
@pytest.mark.parametrize("readers", [1, 2, 5])
def test_any_number_reads_what_any_number_wrote(tmp_path: Path, writers: int, readers: int) -> None:
    save(tmp_path, 3, writers)
    found = read(tmp_path, 3, readers)
    for kind, expected in tensors(3).items():
        for name, tensor in expected.items():
            for number, mine in enumerate(found):
                assert mine[kind].keys() == expected.keys()
                if not tensor.ndim:
                    assert torch.equal(mine[kind][name], tensor)
                    continue
                rows = rows_of(len(tensor), number, readers)
                part = tensor[rows.start : rows.stop]
                assert mine[kind][name].numel() == part.numel()
                if len(part):
                    assert torch.equal(mine[kind][name], part)


def test_a_reader_opens_the_files_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many readers as writers: each its own files, and the small ones of whole tensors."""
    save(tmp_path, 3, 4)
    opened: list[str] = []
    real = Manifest.check_file

    def watched(manifest: Manifest, directory: Path, name: str) -> Path:
        opened.append(name)
        return real(manifest, directory, name)

    monkeypatch.setattr(Manifest, "check_file", watched)
    for number in range(4):
        opened.clear()
        folder = step_folder(tmp_path, 3)
        reader(number, 4).read(folder, read_manifest(folder))
        shards = [f"{kind}-{number + 1:05d}-of-00004.safetensors" for kind in KINDS]
        assert sorted(opened) == sorted([f"{kind}.safetensors" for kind in KINDS] + shards)


def test_no_damage_is_silent(tmp_path: Path) -> None:
    """Of a checkpoint of three, to readers of any number."""
    save(tmp_path / "sound", 3, 3)
    save(tmp_path / "sound", 5, 3)
    folder, count = tmp_path / "damaged", trials("DAMAGES", 60)
    newest = step_folder(Path(), 5)
    for number, _ in enumerate(damaged_copies(tmp_path / "sound", folder, count, part=newest)):
        with pytest.raises(DamagedError):
            read(folder, 5, 1 + number % 4)
        before = read(folder, 3, 1 + number % 4)
        assert torch.equal(before[0]["weights"]["scale"], tensors(3)["weights"]["scale"])


@pytest.mark.parametrize("name", ["b", "more"])
def test_tensors_that_are_not_the_listed_ones_are_refused(name: str, tmp_path: Path) -> None:
    """A manifest that is sound by itself, but says something else than the files."""
    save(tmp_path, 3, 2)
    manifest = read_manifest(step_folder(tmp_path, 3))
    shards = cast("dict[str, Any]", manifest.about["shards"])
    rows = shards["rows"]["weights"]
    rows["more"] = rows.pop(name, [1, 0])
    with pytest.raises(DamagedError, match="weights-00001-of-00002"):
        Reader().read(step_folder(tmp_path, 3), manifest)
