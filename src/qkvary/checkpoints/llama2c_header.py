"""Reads the header of a llama2.c file as the configuration of a network. Torch-free.

The header consists of seven sizes.
"""

import math
import struct
from pathlib import Path
from typing import NamedTuple

from qkvary.arch.attention import PositionConfig
from qkvary.arch.families.attention_fields import Heads
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import (
    LARGEST_SIZE,
    check_regular_file,
    read_start,
    refuse_pickles,
)

ROTARY_BASE = 10_000.0
HEADER = struct.Struct("<7i")
_LATER_VERSIONS = b"24ka"


class Header(NamedTuple):
    """The sizes in the header of a llama2.c file; the fields have the names of llama2.c."""

    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    """Number of tokens; negative if the head has its own matrix."""
    seq_len: int

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return abs(self.vocab_size)

    @property
    def tied(self) -> bool:
        """Whether the output matrix is the embedding matrix."""
        return self.vocab_size > 0

    @property
    def head_dim(self) -> int:
        """Number of channels per head."""
        return self.dim // self.n_heads

    def parts(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays in file order; ``{}`` in a name stands for the layer."""
        dim, hidden, narrow = self.dim, self.hidden_dim, self.n_kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "attention_norm": (dim,),
            "attention.q_proj": (dim, dim),
            "attention.k_proj": (narrow, dim),
            "attention.v_proj": (narrow, dim),
            "attention.o_proj": (dim, dim),
            "feed_forward_norm": (dim,),
            "feed_forward.gate": (hidden, dim),
            "feed_forward.down": (dim, hidden),
            "feed_forward.up": (hidden, dim),
        }
        return {
            "embedding": (self.vocabulary, dim),
            **{
                f"stack.blocks.{{}}.{name}.weight": (self.n_layers, *shape)
                for name, shape in layer.items()
            },
            "stack.final_norm.weight": (dim,),
            "cosines": (self.seq_len, self.head_dim // 2),
            "sines": (self.seq_len, self.head_dim // 2),
            **({} if self.tied else {"head_weight": (self.vocabulary, dim)}),
        }


def list_files(path: Path) -> list[Path]:
    """Return a ``.bin`` file, or all ``.bin`` files of a folder except tokenizers."""
    if path.is_file():
        return [path] if path.suffix == ".bin" else []
    found = sorted(path.glob("*.bin")) if path.is_dir() else []
    return [one for one in found if not one.name.startswith("tok")]


def read_header(data: bytes, file_bytes: int, where: str) -> Header:
    """Read and check the header."""
    if data.startswith(_LATER_VERSIONS):
        raise UsageError(
            f"{where} has a later version of the llama2.c format; export the model as version 0"
        )
    if len(data) < HEADER.size:
        raise DamagedError(f"{where} has {len(data)} bytes, fewer than a header of {HEADER.size}")
    header = Header._make(HEADER.unpack_from(data))
    for name, size in {**header._asdict(), "vocab_size": header.vocabulary}.items():
        if not 1 <= size <= LARGEST_SIZE:
            raise DamagedError(f"{where} has {name} {size}, expected 1 to {LARGEST_SIZE:,}")
    dim, heads, kv_heads = header.dim, header.n_heads, header.n_kv_heads
    if dim % heads or (dim // heads) % 2 or heads % kv_heads:
        raise DamagedError(
            f"{where} has dim {dim}, n_heads {heads} and n_kv_heads {kv_heads}, expected an even "
            "number of channels per head, and a number of KV heads that divides the number of heads"
        )
    expected = HEADER.size + 4 * sum(math.prod(shape) for shape in header.parts().values())
    if file_bytes != expected:
        raise DamagedError(
            f"{where} has {file_bytes:,} bytes instead of the {expected:,} that its header states"
        )
    return header


def read_file_header(file: Path) -> Header:
    """Read the header of a file."""
    refuse_pickles(file)
    return read_header(read_start(file, HEADER.size), check_regular_file(file), str(file))


def make_config(sizes: Header) -> LanguageModelConfig:
    """Return the configuration of the network."""
    heads = Heads(d_model=sizes.dim, count=sizes.n_heads, kv_count=sizes.n_kv_heads)
    rotation = PositionConfig(rotary_base=ROTARY_BASE, rotary_fraction=1.0)
    return LanguageModelConfig(
        attention=heads.attend(positions="rotary", rotation=rotation),
        block=BlockConfig(d_ff=sizes.hidden_dim, activation="swiglu", norm="rmsnorm", bias=False),
        num_layers=sizes.n_layers,
        vocabulary=sizes.vocabulary,
        max_tokens=sizes.seq_len,
        positions="none",
        tied_head=sizes.tied,
    )
