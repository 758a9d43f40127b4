"""Cache layouts, storage and decoding kernels: run-time choices that are not part of a network."""

from dataclasses import dataclass
from typing import Literal

from qkvary.arch.canonical import stored
from qkvary.arch.parts import check_choices

CacheLayout = Literal["sources", "rotated", "split", "input", "latent"]
"""The tensors that a cache stores.

- ``sources``: the unrotated sources of key and value; a shared source is stored once. Keys are
  rotated when they are loaded.
- ``rotated``: the rotated keys and the values, so that loading needs no computation. If the value
  is the unrotated key, only the value and the rotated channels of the key are stored.
- ``split``: the key and the value separately, even if they are equal, as engines store them.
- ``input``: the layer input, which is projected again when it is loaded.
- ``latent``: the output of the first matrix of each low-rank projection. The second matrix is
  applied on loading. If the second matrix does not widen the output of the first, and for all other
  sources, the cache stores the same tensors as with ``sources``.
"""

CacheStorage = Literal["growing", "preallocated", "int8", "int4", "int3"]
"""The storage of a cache: a tensor that grows, a buffer allocated in advance, or codes of 8, 4 or 3
bits with scales."""

CacheScales = Literal["token", "channel"]
"""The codes that share a scale. ``token``: a group of channels of one token. ``channel``: one
channel of a head over a block of tokens."""

QUANTIZED_BITS: dict[CacheStorage, int] = {"int8": 8, "int4": 4, "int3": 3}
"""Bits per code of each quantised storage."""

DecodeKernel = Literal["layer", "auto", "folded", "matmul", "native", "triton"]
"""The kernel that attends to stored entries. ``layer``: the kernel of the layer itself. ``auto``: a
kernel chosen by device, dtype and shape. Every other name stands for one kernel."""


@stored("CacheOptions")
@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The layout and storage of a cache; these options change results only by rounding."""

    layout: CacheLayout = "sources"
    """The tensors that are stored."""
    storage: CacheStorage = "growing"
    """The form in which the tensors are stored."""
    scales: CacheScales = "token"
    """The codes that share a scale in quantised storage."""
    group: int = 64
    """Number of channels that share a scale if ``scales`` is ``token``."""
    block: int = 32
    """Number of tokens that share a scale if ``scales`` is ``channel``. An attention window must be
    at least this long."""
    rotate: bool = False
    """Whether quantised storage rotates the channels of an entry by a fixed orthogonal matrix, so
    that no channel is much larger than the others."""
    residual: int = 0
    """Number of newest tokens that quantised storage leaves unquantised."""
    kernel: DecodeKernel = "layer"
    """The attention kernel for decoding, which is used for a few new tokens without gradients. Only
    with ``layer`` are the results bit-identical to a computation without a cache."""

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
