"""A baseline: the key before its rotation replaces the value."""

import dataclasses

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.sharing import share
from qkvary.conversions.caches.forms import count_numbers, refuse_budget, reshape
from qkvary.conversions.caches.layer_maps import Converted, LayerMaps, write_layer

STATEMENT = "the unrotated key replaces the value"


def choose(layer: AttentionConfig, numbers: int) -> AttentionConfig:
    """Return the new layer's configuration, which caches only keys; ``numbers`` must allow that."""
    size = layer.kv_width
    if not size <= numbers < count_numbers(layer):
        raise refuse_budget("keys alone", numbers, (size,), layer)
    position = dataclasses.replace(layer.position, value_rope="none")
    made = reshape(layer, layer.size_per_head, sharing=share("q", "k", "k"))
    return dataclasses.replace(made, position=position)


def convert(maps: LayerMaps, config: AttentionConfig) -> Converted:
    """Return the layer's new weights for the configuration that ``choose`` returned."""
    return Converted(write_layer(maps, config, maps.output, q_proj=maps.query, k_proj=maps.key))
