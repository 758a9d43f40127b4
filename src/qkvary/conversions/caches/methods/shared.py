"""Shared tensors: in each KV head, one unrotated tensor is both key and value.

All heads also share one rotated key.
"""

import torch

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

STATEMENT = "key and value of each KV head are one tensor (K=V)"


def choose(layer: AttentionConfig, numbers: int) -> AttentionConfig:
    """Return the new layer's configuration, which caches at most ``numbers`` values per token."""
    rotary, heads = choose_rotary(layer, numbers), layer.num_kv_heads
    head_dim = (numbers - rotary) // heads
    if head_dim < 1 or numbers >= count_numbers(layer):
        raise refuse_budget("shared", numbers, range(rotary + heads, count_numbers(layer)), layer)
    return share_tensor(layer, head_dim, rotary=rotary)


def convert(maps: LayerMaps, config: AttentionConfig) -> Converted:
    """Return the layer's new weights for the configuration that ``choose`` returned."""
    rotary = cut_slice(maps, channels=config.rotated_channels)
    queries, outputs = maps.query_moments(), maps.output_moments()
    size, times = config.size_per_head, maps.heads_of_group
    joints = [
        join(
            rotary.rest[:, one],
            maps.value[:, one],
            rank=size,
            moment=maps.moment,
            queries=queries[one],
            outputs=outputs[one],
        )
        for one in (slice(group, group + 1) for group in range(maps.key.shape[1]))
    ]
    key = torch.cat([one.key for one in joints]).repeat_interleave(times, dim=0)
    value = torch.cat([one.value for one in joints]).repeat_interleave(times, dim=0)
    weights = write_layer(
        maps,
        config,
        torch.einsum("hri,hio->hro", value, maps.output),
        q_proj=torch.einsum("dhi,hri->dhr", maps.query, key),
        k_proj=torch.cat([one.read for one in joints], dim=1),
        **rotary.projections,
    )
    spectrum = torch.stack([one.spectrum for one in joints]).mean(0)
    return Converted(weights, float(spectrum[size]), spectrum.repeat_interleave(len(joints)))
