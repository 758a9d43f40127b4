"""The interface of a conversion method, which every file of ``methods`` has."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from qkvary.arch.attention import AttentionConfig

if TYPE_CHECKING:
    from torch import Tensor

    from qkvary.conversions.caches.layer_maps import LayerMaps, Weights


class Converted(NamedTuple):
    """A converted layer."""

    weights: "Weights"
    """The parameters of the layer's projections, in float64."""
    lost: float | None = None
    """The share of the spectrum of keys and values that is dropped; None for methods without a
    spectrum."""
    spectrum: "Tensor | None" = None
    """The share that would be dropped, by the number of channels of the joint tensor, from 0 on."""


class Method(Protocol):
    """The interface of every module in ``methods``."""

    STATEMENT: str
    """The new form, as a clause of a sentence."""

    def choose(self, layer: AttentionConfig, numbers: int, /) -> AttentionConfig:
        """Return the form of the layer with at most this many values per token in its cache.

        Raises:
            UsageError: if there is no such form; the message lists the choices.
        """
        ...

    def convert(self, maps: "LayerMaps", config: AttentionConfig, /) -> Converted:
        """Return the weights for the form that ``choose`` returned."""
        ...
