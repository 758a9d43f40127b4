"""Codes and scales with plain loops: what is read of a cache that rounds, and its bytes one by one.

Blocks are those of a cache from which nothing was ever cropped.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheOptions
from tests.reference.attention import Weights, mix, read_sources, rows_of

Vector = list[float]


def is_coded(options: CacheOptions, token: int, seen: int) -> bool:
    """Whether a token stands there as codes after ``seen`` tokens."""
    size = options.block if options.scales == "channel" else 1
    return (token // size + 1) * size <= seen - options.residual


def stored(options: CacheOptions, tokens: Sequence[Vector]) -> list[Vector]:
    """What is read of one head's tokens."""
    mixed = [turn(token) if options.rotate else token for token in tokens]
    rounded = [list(token) for token in mixed]
    for token, numbers in enumerate(mixed):
        for channel in range(len(numbers)):
            shared = shared_with(options, mixed, token, channel)
            rounded[token][channel] = nearest(numbers[channel], shared, options.bits or 0)
    return [
        (turn(new, back=True) if options.rotate else new)
        if is_coded(options, index, len(tokens))
        else old
        for index, (old, new) in enumerate(zip(tokens, rounded, strict=True))
    ]


def shared_with(
    options: CacheOptions, tokens: Sequence[Vector], token: int, channel: int
) -> Vector:
    """The numbers that have one scale with this one."""
    if options.scales == "token":
        start = channel // options.group * options.group
        return tokens[token][start : start + options.group]
    start = token // options.block * options.block
    return [numbers[channel] for numbers in tokens[start : start + options.block]]


def nearest(number: float, shared: Vector, bits: int) -> float:
    """What the code of a number stands for."""
    most = max(abs(other) for other in shared)
    scale = Fraction(most) / (2 ** (bits - 1) - 1)
    # The next 32-bit number that is no smaller.
    held = np.float32(float(scale))
    if Fraction(float(held)) < scale:
        held = np.nextafter(held, np.float32(math.inf))
    return round(number / float(held)) * float(held) if held else 0.0


def turn(vector: Vector, *, back: bool = False) -> Vector:
    """Mix channels, or mix them back."""
    width = len(vector)
    odd = width
    while odd % 2 == 0:
        odd //= 2

    def entry(i: int, j: int) -> float:
        flips = ((i // odd) & (j // odd)).bit_count()
        angle = 2 * math.pi * (i % odd) * (j % odd) / odd
        pairs = sum(f"{i:b}"[k : k + 2] == "11" for k in range(i.bit_length()))
        sign = (-1) ** (flips + pairs)
        return sign * (math.cos(angle) + math.sin(angle)) / math.sqrt(width)

    return [
        sum(vector[i] * (entry(j, i) if back else entry(i, j)) for i in range(width))
        for j in range(width)
    ]


def decode_rounded(
    config: AttentionConfig, weights: Weights, x: Tensor, options: CacheOptions
) -> Tensor:
    """The outputs of a layer that is fed token by token and reads what the cache stores then.

    What is stored are the sources before any rotation by position.
    """
    sharing = config.variant.sharing
    outputs: list[Tensor] = []
    for sequence, row in zip(x, rows_of(x.shape[1], x.shape[0]), strict=True):
        sources, steps = read_sources(config, weights, sequence), list[Tensor]()
        for i in range(len(sequence)):
            exact = {name: source[:, : i + 1] for name, source in sources.items()}
            rounded = {
                name: torch.tensor(
                    [stored(options, head) for head in exact[name].tolist()], dtype=x.dtype
                )
                for name in {sharing.key, sharing.value}
            }
            part, seen = sequence[: i + 1], row.take(range(i + 1))
            steps.append(mix(config, weights, part, exact | rounded, seen, asked=exact)[-1])
        outputs.append(torch.stack(steps))
    return torch.stack(outputs)
