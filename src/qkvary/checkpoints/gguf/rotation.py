"""Rotary channels in the order of llama.cpp, and partial rotations as divisors of frequencies.

Torch-free. In our networks the last channels of a head rotate, and each channel in the first half
of them is paired with one in the second. llama.cpp rotates all channels of a head, in neighbouring
pairs.
"""

from collections.abc import Sequence

from qkvary.arch.attention import AttentionConfig

STILL = 1e30
"""A frequency divisor that stops the rotation: the sine is zero in 32 bits."""


def paired_first(layer: AttentionConfig) -> list[int]:
    """Return llama.cpp's order of our channels in a head: rotated pairs first, then the others."""
    rotated = layer.position.rotary_dim(layer.size_per_head)
    still, half = layer.size_per_head - rotated, rotated // 2
    pairs = [still + k + part for k in range(half) for part in (0, half)]
    return [*pairs, *range(still)]


def rotary_divisors(head_dim: int, rotated: int, base: float) -> list[float]:
    """Return the divisor of each of llama.cpp's frequencies.

    Pair k rotates by ``base^(-2k/head_dim) / divisor`` there and by ``base^(-2k/rotated)`` here.
    """
    divisors = [base ** (2 * k / rotated - 2 * k / head_dim) for k in range(rotated // 2)]
    return divisors + [STILL] * (head_dim // 2 - len(divisors))


def count_rotated(divisors: Sequence[float], base: float) -> int | None:
    """Return the number of rotated channels per head; ``None`` for divisors of another kind."""
    rotated = 2 * sum(divisor < STILL / 2 for divisor in divisors)
    if rotated == 0:
        return None
    expected = rotary_divisors(2 * len(divisors), rotated, base)
    close = (abs(a - b) <= 1e-5 * b for a, b in zip(divisors, expected, strict=True))
    return rotated if all(close) else None
