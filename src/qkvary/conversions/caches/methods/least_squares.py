"""A baseline: the unrotated key times a matrix, fitted to the value by least squares."""

import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.conversions.caches.layer_maps import Converted, LayerMaps, write_layer
from qkvary.conversions.caches.methods import key_as_value

STATEMENT = "the unrotated key, times a matrix fitted by least squares, replaces the value"

choose = key_as_value.choose


def convert(maps: LayerMaps, config: AttentionConfig) -> Converted:
    """Return the layer's new weights for the configuration that ``choose`` returned.

    A matrix that turns keys into values is fitted, and the output projection absorbs this matrix.
    """
    square = torch.einsum("dgi,de,egj->gij", maps.key, maps.moment, maps.key)
    product = torch.einsum("dgi,de,egj->gij", maps.key, maps.moment, maps.value)
    nearest = torch.linalg.pinv(square, hermitian=True) @ product
    output = nearest.repeat_interleave(maps.heads_of_group, dim=0) @ maps.output
    return Converted(write_layer(maps, config, output, q_proj=maps.query, k_proj=maps.key))
