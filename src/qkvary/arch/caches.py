"""Cache layouts, storage and decoding kernels: run-time choices that are not part of a network."""

from dataclasses import dataclass
from typing import Literal

from qkvary.arch.canonical import stored
from qkvary.arch.parts import check_choices

CacheLayout = Literal["sources", "rotated", "split", "input", "latent"]
"""The tensors that a cache stores. ``sources``: each source that key and value read, once, before
rotation; keys are rotated when they are loaded. ``rotated``: keys already rotated, so that loading
needs no computation; if the value is the unrotated key, the value and the key's rotated channels.
``split``: key and value separately, even if they are equal, as engines store them. ``input``: the
layer input, which is projected again when it is loaded. ``latent``: the output of a low-rank
projection's first matrix, if narrower than that of the second, which is applied on loading; other
sources are stored as under ``sources``."""

CacheStorage = Literal["growing", "preallocated", "int8", "int4", "int3"]
"""A tensor that grows, a buffer allocated beforehand, or codes of 8, 4 or 3 bits with scales."""

CacheScales = Literal["token", "channel"]
"""Which codes share a scale: a group of channels of one token, or one channel of a head over a
block of tokens."""

QUANTIZED_BITS: dict[CacheStorage, int] = {"int8": 8, "int4": 4, "int3": 3}
"""Bits per code, for each quantised storage."""

DecodeKernel = Literal["layer", "auto", "folded", "matmul", "native", "triton"]
"""The kernel that attends to stored entries: the ``layer``'s own, the one that ``auto`` picks by
device, dtype and shape, or a kernel by name."""


@stored("CacheOptions")
@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The layout and storage of a cache; these options change results only by rounding."""

    layout: CacheLayout = "sources"
    """The tensors that are stored."""
    storage: CacheStorage = "growing"
    """The form in which these tensors are stored."""
    scales: CacheScales = "token"
    """Which codes share a scale in quantised storage."""
    group: int = 64
    """Number of channels that share a scale, if each token has its own scales."""
    block: int = 32
    """Number of tokens that share a scale, if each channel has its own scales. A window must be at
    least this long."""
    rotate: bool = False
    """Whether quantised storage rotates the channels of an entry by a fixed orthogonal matrix, so
    that no channel is much larger than the others."""
    residual: int = 0
    """Number of newest tokens that quantised storage leaves unquantised."""
    kernel: DecodeKernel = "layer"
    """The attention kernel for a few new tokens without gradients. Only ``layer`` gives exactly the
    bits of a computation without a cache."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.group < 1 or self.block < 1 or self.residual < 0:
            raise ValueError(
                "expected groups of at least 1 channel, blocks of at least 1 token and a residual "
                f"of at least 0 tokens, got {self.group}, {self.block} and {self.residual}"
            )
        if not self.is_quantized and (self.rotate or self.scales != "token"):
            raise ValueError(
                "expected quantised storage for scales by channel or for a rotation, got "
                f"{self.storage!r}; choices: {', '.join(QUANTIZED_BITS)}"
            )

    @property
    def is_quantized(self) -> bool:
        """Whether cache entries are rounded to fewer bits."""
        return self.storage in QUANTIZED_BITS

    @property
    def bits(self) -> int | None:
        """Bits per stored number; ``None`` if cache entries are not rounded."""
        return QUANTIZED_BITS.get(self.storage)
