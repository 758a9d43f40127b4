"""How a cache stores what it stores: choices of whoever decodes, not of the network."""

from dataclasses import dataclass
from typing import Literal

from qkvary.arch.choices import check_choices

CacheLayout = Literal["sources", "rotated", "split", "input", "latent"]
"""``sources``: each source that key and value read, once, before rotation; keys are rotated when
they are read. ``rotated``: what the softmax reads, so that reading costs nothing; where the value
is the key before rotation, the value and the rotated channels. ``split``: key and value apart, also
where they are one, as engines store them. ``input``: the layer input, projected again when read.
``latent``: of a low-rank projection what its first half gives, if that is narrower, and the source
made of it when read; other sources as with ``sources``."""

CacheStorage = Literal["growing", "preallocated", "int8", "int4"]
"""A tensor as long as what is kept, a buffer allocated beforehand, or codes with scales."""

DecodeKernel = Literal["layer", "auto", "folded", "native", "compiled"]
"""What attends to what is stored: the layer as without a cache, the kernel that a short timing on
this machine finds fastest, or one of those pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """What a cache keeps of a token, and where. Results do not depend on it, rounding apart."""

    layout: CacheLayout = "sources"
    """What is kept of a token."""
    storage: CacheStorage = "growing"
    """Where it is kept."""
    group: int = 64
    """Channels that share a scale in quantised storage."""
    residual: int = 0
    """Newest tokens that quantised storage keeps as they are."""
    kernel: DecodeKernel = "layer"
    """What attends when few tokens are new and no gradient is wanted. Anything but ``layer`` leaves
    to others what the layer's own kernel does bit for bit as without a cache."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.group < 1 or self.residual < 0:
            raise ValueError(
                "expected groups of at least 1 channel and a residual of at least 0 tokens, got "
                f"{self.group} and {self.residual}"
            )

    @property
    def is_quantized(self) -> bool:
        """Whether entries are rounded."""
        return self.storage in ("int8", "int4")
