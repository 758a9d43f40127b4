import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from qkvary.checkpoints.tensor_files import contents_of, read_tensors
from qkvary.storage.errors import DamagedError

TYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool"


def some_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randint(0, 2, (5, 3), generator=generator).to(getattr(torch, name))
        for name in TYPES.split()
    }
    turned = torch.randn(7, 5, generator=generator).T
    return tensors | {
        "turned": turned,
        "number": torch.tensor(3.5),
        "none": torch.empty(0, 11),
        "no columns": torch.empty(3, 0),
        'a "name" é': torch.arange(13),
    }


def bytes_of(tensors: dict[str, Tensor]) -> bytes:
    contents = contents_of(tensors)
    data = b"".join(contents.blocks)
    assert len(data) == contents.size
    return data


def read(folder: Path, data: bytes, rows: range | None = None) -> dict[str, Tensor]:
    (folder / "a.safetensors").write_bytes(data)

    def choose(_name: str, count: int) -> range:
        return range(count) if rows is None or count < 3 else rows

    return read_tensors(folder / "a.safetensors", choose)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_the_library_reads_what_was_written() -> None:
    assert_same(load(bytes_of(some_tensors())), some_tensors())


def test_what_the_library_wrote_is_read(tmp_path: Path) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in some_tensors().items()}
    assert_same(read(tmp_path, save(tensors, metadata={"a": "note"})), tensors)
    assert_same(read(tmp_path, bytes_of(tensors)), tensors)
    assert read(tmp_path, bytes_of({})) == {}


def test_some_rows_are_read(tmp_path: Path) -> None:
    tensors = some_tensors()
    generator = random.Random(0)
    for _ in range(23):
        first = generator.randrange(3)
        rows = range(first, generator.randrange(first, 4))
        found = read(tmp_path, bytes_of(tensors), rows)
        for name, tensor in tensors.items():
            part = tensor[rows.start : rows.stop] if name not in ("number", "none") else tensor
            assert torch.equal(found[name], part), name


def with_header(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        (10**9).to_bytes(8, "little") + b"{}",
        with_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"0000"),
        with_header({"a": {"dtype": "F32", "shape": [10**18], "data_offsets": [0, 4 * 10**18]}}),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DamagedError, match=r"a\.safetensors"):
        read(tmp_path, data)
