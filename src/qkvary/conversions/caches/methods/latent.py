"""Latent attention: keys and values of all heads come from one latent.

All heads also share one rotated key.
"""

from qkvary.arch.attention import AttentionConfig
from qkvary.conversions.caches.forms import (
    choose_rotary,
    count_numbers,
    refuse_budget,
    share_tensor,
)
from qkvary.conversions.caches.joint_tensor import join
from qkvary.conversions.caches.layer_maps import Converted, LayerMaps, write_layer
from qkvary.conversions.caches.rotary_slice import cut_slice

STATEMENT = "keys and values of all heads are computed from one latent"


def choose(layer: AttentionConfig, numbers: int) -> AttentionConfig:
    """Return the new layer's configuration, which caches at most ``numbers`` values per token."""
    rotary = choose_rotary(layer, numbers)
    latent = numbers - rotary
    if latent < 1 or numbers >= count_numbers(layer):
        raise refuse_budget("latent", numbers, range(rotary + 1, count_numbers(layer)), layer)
    return share_tensor(layer, layer.size_per_head, rotary=rotary, latent=latent)


def convert(maps: LayerMaps, config: AttentionConfig) -> Converted:
    """Return the layer's new weights for the configuration that ``choose`` returned."""
    rotary = cut_slice(maps, channels=config.rotated_channels)
    joint = join(
        rotary.rest,
        maps.value,
        rank=config.variant.latent or 0,
        moment=maps.moment,
        queries=maps.query_moments(),
        outputs=maps.output_moments(),
    )
    projections = {"q_proj": maps.query, "k_proj": joint.read, **rotary.projections}
    weights = write_layer(maps, config, maps.output, **projections)
    for name, part in (("key", joint.key), ("value", joint.value)):
        weights[f"latent.{name}.weight"] = part.mT.flatten(0, 1)
    return Converted(weights, joint.lost, joint.spectrum)
