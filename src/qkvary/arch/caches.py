"""Cache layouts, storage and decoding kernels: run-time choices, no part of the network."""

from dataclasses import dataclass
from typing import Literal

from qkvary.arch.canonical import stored
from qkvary.arch.parts import check_choices

CacheLayout = Literal["sources", "rotated", "split", "input", "latent"]
"""``sources``: each source that key and value read, once, before rotation; keys are rotated when
they are read. ``rotated``: what the softmax reads, so that reading costs nothing; where the value
is the key before rotation, the value and the rotated channels. ``split``: key and value apart, also
where they are one, as engines store them. ``input``: the layer input, projected again when read.
``latent``: of a low-rank projection what its first half gives, if that is narrower, and the source
made of it when read; other sources as with ``sources``."""

CacheStorage = Literal["growing", "preallocated", "int8", "int4", "int3", "int2"]
"""A tensor as long as what is kept, a buffer allocated beforehand, or codes of so many bits with
scales; those of fewer than 4 bits are for experiments."""

CacheScales = Literal["token", "channel"]
"""The codes that share a scale: a group of channels of one token, or one channel of a head over a
block of tokens."""

QUANTIZED_BITS: dict[CacheStorage, int] = {"int8": 8, "int4": 4, "int3": 3, "int2": 2}
"""Bits of a code, by storage."""

DecodeKernel = Literal[
    "layer", "auto", "fastest", "folded", "matmul", "compiled", "native", "triton"
]
"""The kernel that attends to stored entries: the layer's own, the one that ``auto`` picks by
device, type and shape and never by timing, the one that a short timing on this machine finds
``fastest``, or one of those pinned."""


@stored("CacheOptions")
@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The layout and storage of a cache. Results do not depend on it, except for rounding."""

    layout: CacheLayout = "sources"
    """The entries stored per token."""
    storage: CacheStorage = "growing"
    """Their storage."""
    scales: CacheScales = "token"
    """The codes that share a scale in quantised storage."""
    group: int = 64
    """Channels that share a scale where each token has its own."""
    block: int = 32
    """Tokens that share a scale where each channel has its own. A block is quantised when it is
    full and has left the newest tokens; a window must keep at least that many tokens."""
    rotate: bool = False
    """Whether quantised storage mixes the channels of an entry by a fixed orthogonal matrix, so
    that no channel is much larger than the others, and mixes them back when they are read."""
    residual: int = 0
    """Number of newest tokens that quantised storage keeps unquantised."""
    kernel: DecodeKernel = "layer"
    """The kernel for few new tokens without gradients. Only ``layer`` computes, bit for bit, the
    same as without a cache."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.group < 1 or self.block < 1 or self.residual < 0:
            raise ValueError(
                "expected groups of at least 1 channel, blocks of at least 1 token and a residual "
                f"of at least 0 tokens, got {self.group}, {self.block} and {self.residual}"
            )
        if not self.is_quantized and (self.rotate or self.scales != "token"):
            raise ValueError(
                "expected quantised storage with scales by channel or a rotation, got "
                f"{self.storage!r}; choices: {', '.join(QUANTIZED_BITS)}"
            )

    @property
    def is_quantized(self) -> bool:
        """Whether entries are rounded."""
        return self.storage in QUANTIZED_BITS

    @property
    def bits(self) -> int | None:
        """Bits of a code; ``None`` where entries are not rounded."""
        return QUANTIZED_BITS.get(self.storage)
