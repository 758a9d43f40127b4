"""Loads Llama-style models of karpathy/llama2.c: a ``.bin`` file of version 0, and its tokenizer.

The file has seven sizes, then the float32 weights, grouped by kind and then by layer. Its rotary
embedding pairs neighbouring channels; ours pairs the two halves of a head. So the rows of query and
key projections are permuted on loading; the network computes the same function.
"""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkvary.checkpoints.llama2c_header import (
    HEADER,
    ROTARY_BASE,
    Header,
    list_files,
    make_config,
    read_header,
)
from qkvary.checkpoints.models import LoadedModel, build_model
from qkvary.checkpoints.sentencepiece import read_pieces
from qkvary.checkpoints.stock_parts import paired_first, restore_order
from qkvary.data.tokenizers import PieceTokenizer
from qkvary.storage.errors import DamagedError
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, explain, only_file, read_file

TOKENIZER_FILES = ("tok{}.bin", "tokenizer.bin")
LONGEST_PIECE = 1024
CHECKED_POSITIONS = 512


def load(path: Path) -> LoadedModel:
    """Load a model, and its tokenizer if a tokenizer file is in the same folder."""
    file = only_file(path, list_files(path))
    data = read_file(file)
    sizes = read_header(data, len(data), str(file))
    place, parts = HEADER.size, dict[str, NDArray[np.float32]]()
    for name, shape in sizes.parts().items():
        values = np.frombuffer(data, "<f4", math.prod(shape), place).reshape(shape)
        parts[name] = values.astype(np.float32)
        place += values.nbytes
    _check_rotation(parts, sizes, str(file))
    tokenizer = _find_tokenizer(file, sizes.vocabulary)
    config = make_config(sizes)
    weights = dict[str, Tensor]()
    for name, values in parts.items():
        if name not in ("cosines", "sines"):
            each = torch.from_numpy(values if "{}" in name else values[None])
            for number, part in enumerate(each):
                own = restore_order(name, part, config.layers[0], paired_first)
                weights[name.format(number)] = own
    return build_model(config, weights, tokenizer, str(file))


def read_tokenizer(data: bytes, vocabulary: int, where: str) -> PieceTokenizer:
    """Read the pieces and scores of a tokenizer file."""
    pieces: list[bytes] = []
    scores: list[float] = []
    place = 4
    for token in range(vocabulary):
        if place + 8 > len(data):
            raise DamagedError(f"{where} ends early, at piece {token} of {vocabulary}")
        score, length = struct.unpack_from("<fi", data, place)
        place += 8
        if not 0 <= length <= LONGEST_PIECE or place + length > len(data):
            raise DamagedError(f"{where} has the invalid length {length} for piece {token}")
        pieces.append(data[place : place + length])
        scores.append(score)
        place += length
    if place != len(data):
        raise DamagedError(f"{where} has {len(data) - place:,} bytes after {vocabulary} pieces")
    with explain(where, "is not a tokenizer"):
        # llama2.c itself does not join spaces.
        return PieceTokenizer(pieces, scores, joins_spaces=False)


def _find_tokenizer(file: Path, vocabulary: int) -> PieceTokenizer | None:
    for name in TOKENIZER_FILES:
        path = file.parent / name.format(vocabulary)
        # Only the original model says whether spaces are joined.
        if (original := path.with_suffix(".model")).exists():
            return read_pieces(read_file(original, limit=MAX_SIDE_FILE_BYTES), str(original))
        if path.exists() and path != file:
            return read_tokenizer(read_file(path, limit=MAX_SIDE_FILE_BYTES), vocabulary, str(path))
    return None


def _check_rotation(parts: dict[str, NDArray[np.float32]], sizes: Header, where: str) -> None:
    count = min(sizes.seq_len, CHECKED_POSITIONS)
    steps = ROTARY_BASE ** (-np.arange(0, sizes.head_dim, 2) / sizes.head_dim)
    angles = np.arange(count)[:, None] * steps
    for name, expected in (("cosines", np.cos(angles)), ("sines", np.sin(angles))):
        # Written so that NaN is refused.
        if not (np.abs(parts[name][:count] - expected) < 1e-3).all():
            raise DamagedError(f"{where} has {name} that do not match the rotary base 10,000")
