"""What loads under a name costs under it, from the header alone, however large the file is."""

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from qkvary.api.cost import cost
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.gguf.headers import read_header
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel
from qkvary.checkpoints.reference_models import find_reference
from qkvary.costs.parameters import model_parameters
from qkvary.storage.errors import DamagedError, UnsafeError, UsageError
from tests.checkpoints.gguf.test_networks import PORTABLE, build_portable, write
from tests.fuzz.formats import FORMATS

KINDS = (
    "gguf pieces",
    "gguf pairs",
    "llama2.c",
    "llama config",
    "gpt2 config",
    "character config",
    "own config",
)


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_costs_what_is_loaded(name: str, tmp_path: Path) -> None:
    file = FORMATS[name].make(tmp_path)
    network = load_checkpoint(file.parent).network
    is_file = file.suffix in (".gguf", ".bin")
    for path in (file.parent, file) if is_file else (file.parent,):
        found = find_reference(path)
        weights = sum(one.numel() for one in network.parameters())
        assert model_parameters(found).total == weights
        assert len(found.layers) == network.config.num_layers
        assert found.max_tokens == network.config.max_tokens


@pytest.mark.parametrize("label", [PORTABLE[1], PORTABLE[6]])
def test_deepseek_costs_the_same_in_both_formats(label: str, tmp_path: Path) -> None:
    network = build_portable(label, tied_head=False)
    export_folder(LoadedModel(network, None), tmp_path / "model", to="deepseek")
    folder, file = find_reference(tmp_path / "model"), find_reference(write(network, tmp_path))
    assert model_parameters(file) == model_parameters(folder)
    header = read_header(tmp_path / "a.gguf")
    assert model_parameters(file).total == sum(math.prod(one) for one in header.shapes.values())


def pack_header(metadata: Mapping[str, int | str], shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """A header of tensors of float16."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(metadata))]
    for key, value in metadata.items():
        kind = struct.pack("<I", 8 if isinstance(value, str) else 4)
        stored = text(value) if isinstance(value, str) else struct.pack("<I", value)
        parts += [text(key), kind, stored]
    place = 0
    for name, shape in shapes.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        parts += [text(name), sizes, struct.pack("<IQ", 1, place)]
        place += 2 * math.prod(shape)
    return b"".join(parts)


def write_large(path: Path) -> int:
    """Llama 3.1 405B in 16 bits, nearly all of it a hole; its weights are returned."""
    width, inner, heads, kv_heads, layers, words = 16_384, 53_248, 128, 8, 126, 128_256
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": width,
        "llama.feed_forward_length": inner,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.block_count": layers,
        "llama.context_length": 131_072,
    }
    narrow = width // heads * kv_heads
    block = {
        "attn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (narrow, width),
        "attn_v": (narrow, width),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    shapes = {"token_embd.weight": (words, width), "output.weight": (words, width)}
    shapes["output_norm.weight"] = (width,)
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    weights = sum(map(math.prod, shapes.values()))
    with path.open("wb") as file:
        file.write(pack_header(metadata, shapes))
        file.truncate(file.tell() + 2 * weights + 64)
    return weights


def test_a_file_larger_than_the_memory_is_counted(tmp_path: Path) -> None:
    weights = write_large(tmp_path / "large.gguf")
    assert (tmp_path / "large.gguf").stat().st_size > 800e9
    model = find_reference(tmp_path / "large.gguf")
    assert model_parameters(model).total == weights == 405_853_388_800
    assert model.name == "large"
    assert cost(tmp_path / "large.gguf", context="8k").value.model == model


def cut(data: bytes) -> bytes:
    return data[:-9]


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("gguf pieces", cut, DamagedError, "fewer than its tensors|ends before"),
        ("gguf pieces", lambda _data: b"", DamagedError, "is empty"),
        ("llama2.c", cut, DamagedError, "bytes instead of the"),
        ("llama2.c", lambda data: b"24ka" + data[4:], UsageError, "later version"),
        ("llama2.c", lambda _data: b"PK\x03\x04" + bytes(99), UnsafeError, "is a pickle"),
    ],
)
def test_a_damaged_file_is_a_sentence(
    name: str,
    change: Callable[[bytes], bytes],
    error: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    file = FORMATS[name].make(tmp_path)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(error, match=message):
        find_reference(file)
