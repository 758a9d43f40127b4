"""Divides the byte budget of a cache among layers: equally, or with more for layers that need it.

This module does not import torch, so a wrong budget is refused before a network is loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.networks import LanguageModelConfig
from qkvary.conversions.caches.forms import count_numbers
from qkvary.costs.cache import entries_bytes
from qkvary.costs.formats import Format
from qkvary.storage.errors import UsageError

TOKENS = 4096
"""Length of the context for which bytes per token are computed. Bytes that all tokens share are
divided by this length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The maximum size of a cache."""

    share: float | None = None
    """The size relative to the cache of the unconverted network in the same number format."""
    bytes_per_token: float | None = None
    """The size in bytes per token, summed over all layers. Give either this or ``share``."""
    stored_as: Format

    def __post_init__(self) -> None:
        if (self.share is None) == (self.bytes_per_token is None):
            raise UsageError("expected exactly one of --cache (such as 50%) and --bytes-per-token")
        if self.share is not None and not 0 < self.share < 1:
            raise UsageError(
                f"expected a share of the cache above 0 and below 100%, got {100 * self.share:g}%"
            )

    def share_of(self, config: LanguageModelConfig) -> float:
        """Return the allowed size as a share of the network's present cache."""
        if self.share is not None:
            return self.share
        now, wanted = network_bytes(config, self.stored_as), self.bytes_per_token or 0.0
        if wanted >= now:
            raise UsageError(
                f"expected fewer bytes per token than the cache takes now ({now:,.0f} in "
                f"{self.stored_as.name}), got {wanted:,.0f}"
            )
        return wanted / now


def layer_bytes(layer: AttentionConfig, stored_as: Format) -> float:
    """Return a layer's cache bytes per token, including its quantization scales."""
    attention = ProjectedAttention(config=layer)
    return entries_bytes(attention, seen=TOKENS, kept=TOKENS, stored_as=stored_as) / TOKENS


def network_bytes(config: LanguageModelConfig, stored_as: Format) -> float:
    """Return the cache bytes per token, summed over all layers."""
    return sum(layer_bytes(layer, stored_as) for layer in config.layers)


def spend_evenly(
    config: LanguageModelConfig,
    budget: Budget,
    choose: Callable[[AttentionConfig, int], AttentionConfig],
) -> tuple[int, ...]:
    """Return each layer's number of cached values per token, for an equal share of bytes."""
    share, stored_as = budget.share_of(config), budget.stored_as
    found: dict[AttentionConfig, int] = {}
    for layer in config.layers:
        if layer not in found:
            most = share * layer_bytes(layer, stored_as)
            numbers = int(share * count_numbers(layer))
            # Quantization scales do not shrink in proportion.
            while numbers > 1 and layer_bytes(choose(layer, numbers), stored_as) > most:
                numbers -= 1
            found[layer] = count_numbers(choose(layer, numbers))
    return tuple(found[layer] for layer in config.layers)


def spend_by_cost(
    costs: Sequence[Sequence[float]], total: int, *, least: int, step: int
) -> tuple[int, ...]:
    """Return each layer's number of cached values per token, with more where this lowers the cost.

    ``costs[layer][size]`` is the forecast cost of a layer. All layers start with the size
    ``least``. Then the layer whose cost falls most grows by ``step``, until ``total`` is spent.
    """
    sizes = [least] * len(costs)

    def gain(layer: int) -> float:
        now, more = sizes[layer], min(sizes[layer] + step, len(costs[layer]) - 1)
        return costs[layer][now] - costs[layer][more] if more > now else -1.0

    while sum(sizes) + step <= total:
        best = max(range(len(costs)), key=gain)
        if gain(best) < 0:
            break
        sizes[best] = min(sizes[best] + step, len(costs[best]) - 1)
    return tuple(sizes)
