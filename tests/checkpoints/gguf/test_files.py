"""GGUF files as llama.cpp's own package reads and quantises them, and damaged ones."""

import struct
from pathlib import Path
from typing import Any, get_args

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from qkvary.checkpoints.gguf.files import Tensor, pack_file, unpack_tensor
from qkvary.checkpoints.gguf.headers import BLOCKS, TensorType, parse_file
from qkvary.storage.errors import DamagedError

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "a.number": 7,
    "a.negative": -7,
    "a.flag": True,
    "a.share": 0.5,
    "a.text": "naïve",
    "a.list": [1, 2, 3],
    "a.shares": [0.5, -2.0],
    "a.texts": ["a", "é", ""],
}
VALUES = np.random.default_rng(0).normal(size=(3, 5, 64)).astype(np.float32)
TENSORS = {kind: Tensor(VALUES, kind) for kind in get_args(TensorType)}


def test_the_package_of_llama_cpp_reads_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(pack_file(METADATA, TENSORS))
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    found = {name: field.contents() for name, field in reader.fields.items()}
    assert {name: found[name] for name in METADATA} == METADATA
    for one in reader.tensors:
        assert one.tensor_type.name.lower() == one.name
        assert one.data.tobytes() == quantize(VALUES, one.tensor_type).tobytes()
        assert [int(size) for size in one.shape] == [64, 5, 3]


def test_what_is_written_is_read() -> None:
    file = parse_file(pack_file(METADATA, TENSORS), "a.gguf")
    assert file.metadata == METADATA
    assert np.array_equal(unpack_tensor(file.tensors["f32"]), VALUES)
    for kind, error in {"f16": 2**-11, "bf16": 2**-8, "q8_0": 1.01 / 254 * 4}.items():
        tensor = file.tensors[kind]
        assert tensor.type == kind
        assert np.abs(unpack_tensor(tensor) - VALUES).max() <= error * np.abs(VALUES).max()


def test_every_type_of_the_package_is_read() -> None:
    """Also those that are not written here, as files of other models have them."""
    for kind, blocks in BLOCKS.items():
        number = gguf.GGMLQuantizationType[kind.upper()]
        assert blocks == (number, *gguf.GGML_QUANT_SIZES[number])
        values = np.linspace(-1, 1, 2 * blocks.size, dtype=np.float32).reshape(2, -1)
        try:
            packed = quantize(values, number)
        except NotImplementedError:
            packed = np.full((2, blocks.block_bytes), 1, dtype=np.uint8)
        data = pack_file({}, {"w": Tensor(values, "f32")})
        # After the counts, the name and two sizes.
        head = (
            data[:53] + struct.pack("<I", blocks.number) + data[57 : data.index(values.tobytes())]
        )
        found = parse_file(head + packed.tobytes(), "a.gguf").tensors["w"]
        assert found.type == kind
        assert np.array_equal(unpack_tensor(found), dequantize(packed, number), equal_nan=True)


SMALL = pack_file({"general.name": "a", "list": [1, 2]}, {"w": Tensor(VALUES[0, :1], "f32")})
AT = {"version": 4, "tensors": 8, "values": 16, "key": 24}


def changed(place: int, code: str, value: int) -> bytes:
    size = struct.calcsize(code)
    return SMALL[:place] + struct.pack(code, value) + SMALL[place + size :]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends inside its header"),
        (b"GGML" + SMALL[4:], "does not begin with GGUF"),
        (changed(AT["version"], "<I", 1), "has version 1, expected 2 or 3"),
        (changed(AT["tensors"], "<Q", 2**40), "tensors, expected at most"),
        (changed(AT["values"], "<Q", 2**63), "values, expected at most"),
        (changed(AT["key"], "<Q", 2**60), "letters in a name, expected at most 1,024"),
        (changed(AT["key"] + 8 + 12 + 4, "<Q", 2**60), "ends inside its header"),
        (changed(AT["key"] + 20, "<I", 99), "a value of the unknown type 99"),
        (SMALL[:-10], "ends before w"),
        (SMALL.replace(b"\0w", b"\0\xff"), "a name with characters that are not printable"),
        (pack_file({"general.alignment": 3}, {}), "the alignment 3, expected a power of two"),
        (pack_file({"general.alignment": 32.0}, {}), "the alignment 32.0, expected a power of two"),
    ],
)
def test_damaged_headers_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(DamagedError) as caught:
        parse_file(data, "a.gguf")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
