"""A baseline: the unrotated key in place of the value."""

import dataclasses

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.sharing import share
from qkvary.conversions.caches.forms import count_numbers, merge, refuse_budget, resize
from qkvary.conversions.caches.layer_maps import LayerMaps, write_layer, write_output
from qkvary.conversions.caches.method import Converted

STATEMENT = "the unrotated key replaces the value"


def choose(layer: AttentionConfig, numbers: int) -> AttentionConfig:
    """Return the form; its only size is that of the keys."""
    size = layer.kv_width
    if not size <= numbers < count_numbers(layer):
        raise refuse_budget("keys alone", numbers, (size,), layer)
    position = dataclasses.replace(layer.position, value_rope="none")
    variant = merge(layer, sharing=share("q", "k", "k"))
    made = resize(layer, variant, layer.size_per_head)
    return dataclasses.replace(made, position=position)


def convert(maps: LayerMaps, config: AttentionConfig) -> Converted:
    """Return the weights of the form."""
    factor = maps.config.score_scale / config.score_scale
    weights = write_layer(config, q_proj=maps.query * factor, k_proj=maps.key)
    return Converted(weights | write_output(maps, config, maps.output))
