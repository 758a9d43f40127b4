"""A baseline: fewer KV heads, each the mean of the heads that it replaces.

Source: Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models from
Multi-Head Checkpoints", section 2.1. The paper continues training after this conversion.
"""

from qkvary.arch.attention import AttentionConfig
from qkvary.conversions.caches.layer_maps import Converted, LayerMaps, write_layer
from qkvary.conversions.caches.methods import grouped

STATEMENT = "each group of KV heads is replaced by the mean of its heads"

choose = grouped.choose


def convert(maps: LayerMaps, config: AttentionConfig) -> Converted:
    """Return the layer's new weights for the configuration that ``choose`` returned."""
    key, value = (
        role.unflatten(1, (config.num_kv_heads, -1)).mean(dim=2) for role in (maps.key, maps.value)
    )
    return Converted(
        write_layer(maps, config, maps.output, q_proj=maps.query, k_proj=key, v_proj=value)
    )
