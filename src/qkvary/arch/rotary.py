"""Rotary positions that are scaled to longer texts: one divisor for each frequency.

A frequency turns one pair of channels.

Source: ``modeling_rope_utils`` of transformers 5.23.0.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import Literal

from qkvary.arch.canonical import ADDED_LATER, stored
from qkvary.arch.parts import check_choices, check_sizes

ScalingForm = Literal["linear", "dynamic", "yarn", "llama3", "longrope"]


@stored("RotaryScaling")
@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """The scaling of rotary frequencies for texts longer than those of pre-training.

    ``linear``: one factor for all frequencies. ``dynamic`` (NTK): a larger base once a text exceeds
    the original length. ``yarn``: the factor for long wavelengths, none for short ones, and a ramp
    in between. ``llama3``: like ``yarn``, with a ramp linear in frequency. ``longrope``: lists of
    factors, one for texts up to the original length and one for longer texts.

    Source: Chen et al. 2023 (linear), bloc97 2023 (dynamic NTK), Peng et al. 2023, "YaRN", Llama
    Team 2024, "The Llama 3 Herd of Models", Ding et al. 2024, "LongRoPE"; Nakanishi 2025,
    "Scalable-Softmax" (``query_growth``).
    """

    form: ScalingForm
    factor: float = 1.0
    """Ratio of the longest text with the scaling to ``original_tokens``."""
    original_tokens: int = 1
    """Length of the longest original text, before the scaling, in tokens; ``linear`` ignores it."""
    slow: float = 1.0
    """Frequencies with at most this many turns in the original text are divided by ``factor``."""
    fast: float = 32.0
    """Frequencies with at least this many turns in the original text are not divided."""
    whole_channels: bool = True
    """Whether the ramp of ``yarn`` starts and ends at whole channels."""
    short: tuple[float, ...] = ()
    """The divisors of ``longrope`` for texts up to the original length, one per frequency."""
    long: tuple[float, ...] = ()
    """The divisors of ``longrope`` for longer texts."""
    attention_factor: float = 1.0
    """Factor by which the rotated channels of queries and keys are multiplied."""
    query_growth: float = field(default=0.0, metadata=ADDED_LATER)
    """Growth of queries beyond the original length: the query at position p is multiplied by ``1 +
    query_growth ln(1 + floor(p / original_tokens))``."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(self, "original_tokens")
        numbers = (self.factor, self.slow, self.fast, self.attention_factor)
        # Queries may also not grow at all.
        growing = (self.query_growth,) if self.query_growth else ()
        for value in (*numbers, *self.short, *self.long, *growing):
            if not 0 < value < math.inf:
                raise ValueError(f"expected positive numbers of rotary scaling, got {value}")
        if self.form in ("yarn", "llama3") and not self.slow < self.fast:
            raise ValueError(
                f"expected slow below fast for {self.form}, got {self.slow} and {self.fast}"
            )
        if self.form == "dynamic" and self.factor < 1:
            raise ValueError(f"expected a factor of at least 1 for dynamic, got {self.factor}")
        if (self.form == "longrope") != bool(self.short) or len(self.short) != len(self.long):
            raise ValueError(
                "expected equal numbers of short and long divisors for longrope, none for other "
                f"forms, got {len(self.short)} and {len(self.long)} for {self.form}"
            )

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies of all tokens change when a text grows."""
        return self.form == "dynamic" or self.short != self.long

    def check(self, channels: int) -> None:
        """Refuse a number of rotated channels that the scaling does not support."""
        if self.form == "longrope" and len(self.short) != channels // 2:
            raise ValueError(
                f"expected {channels // 2} divisors for {channels} rotated channels, got "
                f"{len(self.short)}"
            )
        if self.form == "dynamic" and channels < 4:
            raise ValueError(
                f"expected at least 4 rotated channels for the scaling dynamic, got {channels}"
            )

    def divisors(self, channels: int, base: float, tokens: int) -> tuple[float, ...]:
        """Return the divisor of the frequency ``base^(-2k/channels)`` of each pair k of channels.

        ``tokens`` is the length of the text, used only if the scaling depends on it.
        """
        counted = max(tokens, self.original_tokens) if self.depends_on_length else 0
        if self.form == "longrope":
            return self.long if counted > self.original_tokens else self.short
        return _divide(self, channels, base, counted)


@functools.lru_cache(maxsize=256)
def _divide(scaling: RotaryScaling, channels: int, base: float, tokens: int) -> tuple[float, ...]:
    pairs = range(channels // 2)
    if scaling.form == "linear":
        return (scaling.factor,) * len(pairs)
    if scaling.form == "dynamic":
        longer = scaling.factor * tokens / scaling.original_tokens - (scaling.factor - 1)
        return tuple(longer ** (2 * k / (channels - 2)) for k in pairs)
    # ``yarn`` and ``llama3`` keep a share of each frequency, and divide the rest.
    shares = _yarn_shares if scaling.form == "yarn" else _llama3_shares
    return tuple(
        1 / (share + (1 - share) / scaling.factor) for share in shares(scaling, channels, base)
    )


def _yarn_shares(scaling: RotaryScaling, channels: int, base: float) -> list[float]:
    def channel_of(turns: float) -> float:
        wave = scaling.original_tokens / (turns * 2 * math.pi)
        return channels * math.log(wave) / (2 * math.log(base))

    low, high = channel_of(scaling.fast), channel_of(scaling.slow)
    if scaling.whole_channels:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, channels - 1)
    wide = high - low if high != low else 0.001
    return [1 - min(max((k - low) / wide, 0.0), 1.0) for k in range(channels // 2)]


def _llama3_shares(scaling: RotaryScaling, channels: int, base: float) -> list[float]:
    turns = (
        scaling.original_tokens * base ** (-2 * k / channels) / (2 * math.pi)
        for k in range(channels // 2)
    )
    wide = scaling.fast - scaling.slow
    return [min(max((one - scaling.slow) / wide, 0.0), 1.0) for one in turns]
