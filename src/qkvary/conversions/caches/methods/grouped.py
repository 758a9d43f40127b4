"""Fewer KV heads: each group of KV heads is replaced by one head.

The rotated channels of the new key are the linear combination of the group's rotated keys that
keeps the most energy. The other channels of the new key are fitted to the rest of the
group's keys. The new value is fitted to the group's values.
"""

import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.conversions.caches.forms import count_numbers, refuse_budget, reshape
from qkvary.conversions.caches.joint_tensor import join
from qkvary.conversions.caches.layer_maps import Converted, LayerMaps, write_layer
from qkvary.conversions.caches.rotary_slice import cut_slice
from qkvary.storage.errors import UsageError

STATEMENT = "each group of KV heads is replaced by the one head that fits the group best"


def choose(layer: AttentionConfig, numbers: int) -> AttentionConfig:
    """Return the new layer's configuration, which caches at most ``numbers`` values per token."""
    kept, heads = count_numbers(layer), layer.num_kv_heads
    if heads == 1:
        raise UsageError("expected several KV heads for grouped, got one; choices: latent, shared")
    each = kept // heads
    fewer = [count for count in range(1, heads) if heads % count == 0]
    fitting = [count for count in fewer if count * each <= numbers]
    if not fitting or numbers >= kept or layer.variant.sharing.key == layer.variant.sharing.value:
        raise refuse_budget("grouped", numbers, [count * each for count in fewer], layer)
    return reshape(layer, layer.size_per_head, num_kv_heads=fitting[-1])


def convert(maps: LayerMaps, config: AttentionConfig) -> Converted:
    """Return the layer's new weights for the configuration that ``choose`` returned."""
    queries, outputs = maps.query_moments(), maps.output_moments()
    size, merged = config.size_per_head, maps.key.shape[1] // config.num_kv_heads
    still = size - config.rotated_channels
    parts: list[list[torch.Tensor]] = []
    lost: list[float] = []
    for start in range(0, maps.key.shape[1], merged):
        one = slice(start, start + merged)
        heads = slice(start * maps.heads_of_group, (start + merged) * maps.heads_of_group)
        turned = cut_slice(maps, one)
        weighed = {"moment": maps.moment, "queries": queries[one], "outputs": outputs[one]}
        nothing = torch.zeros_like(turned.rest)
        keys = join(turned.rest, nothing, rank=still, **weighed)
        values = join(nothing, maps.value[:, one], rank=size, **weighed)
        key_up, value_up = (
            part.repeat_interleave(maps.heads_of_group, dim=0) for part in (keys.key, values.value)
        )
        query = torch.einsum("dhi,hri->dhr", maps.query[:, heads], key_up)
        parts.append(
            [
                torch.cat((query, turned.query), dim=2),
                torch.cat((keys.read, turned.key), dim=1),
                values.read,
                torch.einsum("hri,hio->hro", value_up, maps.output[heads]),
            ]
        )
        lost.append(values.lost)
    query, key, value = (torch.cat([part[role] for part in parts], dim=1) for role in range(3))
    output = torch.cat([part[3] for part in parts])
    weights = write_layer(maps, config, output, q_proj=query, k_proj=key, v_proj=value)
    return Converted(weights, sum(lost) / len(lost))
