"""Llama-style models of karpathy/llama2.c: a ``.bin`` of version 0, and its tokenizer.

The file has seven sizes, then the float32 weights, each kind over all layers. Its rotary embedding
pairs neighbouring channels; ours pairs the two halves of a head. The rows of query and key
projections are permuted once, which changes nothing else.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkvary.arch.attention import PositionConfig
from qkvary.arch.families.attention_fields import Heads
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.checkpoints.models import LARGEST_SIZE, LoadedModel, build_model
from qkvary.checkpoints.sentencepiece import joins_spaces, read_pieces
from qkvary.data.tokenizers import PieceTokenizer
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, read_file

FORMAT = "llama2.c (a .bin file, with its tokenizer tok*.bin in the same folder)"
TOKENIZER_FILES = ("tok{}.bin", "tokenizer.bin")
ROTARY_BASE = 10_000.0
LONGEST_PIECE = 1024
CHECKED_POSITIONS = 512
_HEADER = struct.Struct("<7i")
_LATER_VERSIONS = b"24ka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header of a file."""

    dim: int
    """The model width."""
    hidden: int
    """The inner width of the feed-forward networks."""
    layers: int
    """Layers."""
    heads: int
    """Query heads."""
    kv_heads: int
    """KV heads."""
    vocabulary: int
    """Tokens."""
    tokens: int
    """The maximum sequence length."""
    tied: bool
    """Whether the embedding is the output matrix."""

    @property
    def head_dim(self) -> int:
        """Channels per head."""
        return self.dim // self.heads

    def parts(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays after the header, in order."""
        dim, hidden, layers = self.dim, self.hidden, self.layers
        narrow = self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocabulary, dim),
            "attention_norm": (layers, dim),
            "query": (layers, dim, dim),
            "key": (layers, narrow, dim),
            "value": (layers, narrow, dim),
            "output": (layers, dim, dim),
            "feed_forward_norm": (layers, dim),
            "gate": (layers, hidden, dim),
            "down": (layers, dim, hidden),
            "up": (layers, hidden, dim),
            "final_norm": (dim,),
            "cosines": (self.tokens, self.head_dim // 2),
            "sines": (self.tokens, self.head_dim // 2),
        }
        return shapes if self.tied else {**shapes, "head": (self.vocabulary, dim)}


def recognises(path: Path) -> bool:
    """Return whether a path is a ``.bin`` file, or a folder with one."""
    return path.suffix == ".bin" if path.is_file() else bool(_weight_files(path))


def load(path: Path) -> LoadedModel:
    """Load a model and, if one is next to it, its tokenizer.

    Raises:
        UsageError: if a folder holds several models, or a file cannot be read.
        DamagedError: if a file does not match its header.
        UnsafeError: if it is a pickle.
    """
    file = path if path.is_file() else _only(path)
    data = read_file(file)
    sizes = read_header(data, str(file))
    parts = _read_parts(data, sizes, str(file))
    _check_rotation(parts, sizes, str(file))
    tokenizer = _find_tokenizer(file, sizes.vocabulary)
    return build_model(_make_config(sizes), _make_weights(parts, sizes), tokenizer, str(file))


def read_header(data: bytes, where: str) -> Header:
    """Read and check the header.

    Raises:
        UsageError: if it is of a later version of the format.
        DamagedError: if it is too short, or has implausible sizes.
    """
    if data.startswith(_LATER_VERSIONS):
        raise UsageError(
            f"{where} is of a later version of the llama2.c format; export it as version 0"
        )
    if len(data) < _HEADER.size:
        raise DamagedError(f"{where} has {len(data)} bytes, fewer than a header of {_HEADER.size}")
    dim, hidden, layers, heads, kv_heads, vocabulary, tokens = _HEADER.unpack_from(data)
    named = {"dim": dim, "hidden_dim": hidden, "n_layers": layers, "n_heads": heads}
    named |= {"n_kv_heads": kv_heads, "vocab_size": abs(vocabulary), "seq_len": tokens}
    for name, size in named.items():
        if not 1 <= size <= LARGEST_SIZE:
            raise DamagedError(f"{where} has {name} {size}, expected 1 to {LARGEST_SIZE:,}")
    if dim % heads or (dim // heads) % 2 or heads % kv_heads:
        raise DamagedError(
            f"{where} has dim {dim}, n_heads {heads} and n_kv_heads {kv_heads}, expected heads of "
            "an even number of channels and KV heads that divide them"
        )
    return Header(
        dim=dim,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=abs(vocabulary),
        tokens=tokens,
        tied=vocabulary > 0,
    )


def read_tokenizer(
    data: bytes, vocabulary: int, where: str, *, one_space: bool = False
) -> PieceTokenizer:
    """Read the pieces and scores of a tokenizer file.

    Args:
        data: The bytes of the file.
        vocabulary: The required number of pieces.
        where: The name of the file in messages.
        one_space: Whether runs of spaces are collapsed, which the file does not store.

    Raises:
        DamagedError: if it does not hold exactly ``vocabulary`` pieces.
    """
    pieces: list[bytes] = []
    scores: list[float] = []
    place = 4
    for token in range(vocabulary):
        if place + 8 > len(data):
            raise DamagedError(f"{where} ends at piece {token} of {vocabulary}")
        score, length = struct.unpack_from("<fi", data, place)
        place += 8
        if not 0 <= length <= LONGEST_PIECE or place + length > len(data):
            raise DamagedError(f"{where} has {length} bytes in piece {token}, or ends inside it")
        pieces.append(data[place : place + length])
        scores.append(score)
        place += length
    if place != len(data):
        raise DamagedError(f"{where} has {len(data) - place:,} bytes after {vocabulary} pieces")
    try:
        return PieceTokenizer(pieces, scores, joins_spaces=one_space)
    except ValueError as error:
        raise DamagedError(f"{where} is not a tokenizer: {error}") from None


def _weight_files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.bin")) if folder.is_dir() else []
    return [path for path in found if not path.name.startswith("tok")]


def _only(folder: Path) -> Path:
    found = _weight_files(folder)
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise UsageError(f"expected one .bin in {folder}, got {len(found)}: {names}; name the file")
    return found[0]


def _find_tokenizer(file: Path, vocabulary: int) -> PieceTokenizer | None:
    for name in TOKENIZER_FILES:
        path = file.parent / name.format(vocabulary)
        if path.exists() and path != file:
            data = read_file(path, limit=MAX_SIDE_FILE_BYTES)
            joins = _joins_spaces(path.with_suffix(".model"))
            return read_tokenizer(data, vocabulary, str(path), one_space=joins)
    for path in (file.parent / name for name in (f"tok{vocabulary}.model", "tokenizer.model")):
        if path.exists():
            return read_pieces(read_file(path, limit=MAX_SIDE_FILE_BYTES), str(path))
    return None


def _joins_spaces(path: Path) -> bool:
    """Return whether the original tokenizer collapses spaces; llama2.c itself does not."""
    if not path.exists():
        return False
    return joins_spaces(read_file(path, limit=MAX_SIDE_FILE_BYTES), str(path))


def _read_parts(data: bytes, sizes: Header, where: str) -> dict[str, NDArray[np.float32]]:
    shapes = sizes.parts()
    expected = _HEADER.size + 4 * sum(math.prod(shape) for shape in shapes.values())
    if expected != len(data):
        raise DamagedError(
            f"{where} has {len(data):,} bytes instead of the {expected:,} of its header"
        )
    place, parts = _HEADER.size, dict[str, NDArray[np.float32]]()
    for name, shape in shapes.items():
        count = math.prod(shape)
        values = np.frombuffer(data, dtype="<f4", count=count, offset=place)
        parts[name] = values.reshape(shape).astype(np.float32)
        place += 4 * count
    return parts


def _check_rotation(parts: dict[str, NDArray[np.float32]], sizes: Header, where: str) -> None:
    """Refuse a model that was trained with another rotary embedding."""
    count = min(sizes.tokens, CHECKED_POSITIONS)
    steps = ROTARY_BASE ** (-np.arange(0, sizes.head_dim, 2) / sizes.head_dim)
    angles = np.arange(count)[:, None] * steps
    for name, expected in (("cosines", np.cos(angles)), ("sines", np.sin(angles))):
        # Not "greater", which would accept NaN.
        if not (np.abs(parts[name][:count] - expected) < 1e-3).all():
            raise DamagedError(f"{where} has {name} of a rotary base other than 10,000")


def _make_config(sizes: Header) -> LanguageModelConfig:
    heads = Heads(d_model=sizes.dim, count=sizes.heads, kv_count=sizes.kv_heads)
    rotation = PositionConfig(rotary_base=ROTARY_BASE, rotary_fraction=1.0)
    return LanguageModelConfig(
        attention=heads.attend(positions="rotary", rotation=rotation),
        block=BlockConfig(d_ff=sizes.hidden, activation="swiglu", norm="rmsnorm", bias=False),
        num_layers=sizes.layers,
        vocabulary=sizes.vocabulary,
        max_tokens=sizes.tokens,
        positions="none",
        tied_head=sizes.tied,
    )


def _make_weights(parts: dict[str, NDArray[np.float32]], sizes: Header) -> dict[str, Tensor]:
    tensors = {name: torch.from_numpy(values) for name, values in parts.items()}
    weights = {
        "embedding": tensors["embedding"],
        "stack.final_norm.weight": tensors["final_norm"],
    }
    if not sizes.tied:
        weights["head_weight"] = tensors["head"]
    for layer in range(sizes.layers):
        own = {
            "attention.q_proj": _split_halves(tensors["query"][layer], sizes.heads),
            "attention.k_proj": _split_halves(tensors["key"][layer], sizes.kv_heads),
            "attention.v_proj": tensors["value"][layer],
            "attention.o_proj": tensors["output"][layer],
            "attention_norm": tensors["attention_norm"][layer],
            "feed_forward.gate": tensors["gate"][layer],
            "feed_forward.up": tensors["up"][layer],
            "feed_forward.down": tensors["down"][layer],
            "feed_forward_norm": tensors["feed_forward_norm"][layer],
        }
        weights |= {f"stack.blocks.{layer}.{name}.weight": part for name, part in own.items()}
    return weights


def _split_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder row pairs (0, 1), (2, 3), ... to all first, then all second rows of each head."""
    pairs = weight.unflatten(0, (heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)
