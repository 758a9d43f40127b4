"""Products of two matrices of a single head: query with key, value with output.

A head as wide as the layer needs one matrix instead of two. Only the attention layer changes, so
norms and skips do not matter; rotary positions come between query and key and prevent the merge.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Proposition 4.1, Remark 1.
"""

import dataclasses

import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import format_label
from qkvary.arch.sharing import IDENTITY, QUERY_ROPE, Role, Sharing, Source, share
from qkvary.conversions.attention_bases import (
    LayerDraft,
    check_bias,
    check_terms,
    make_plain,
    release_bias,
    scale_scores,
    scale_sources,
)
from qkvary.conversions.draft import Conditioning, measure_condition
from qkvary.storage.errors import UsageError


def merge_query(layer: LayerDraft) -> tuple[LayerDraft, tuple[Conditioning, ...]]:
    """Return a layer whose key is ``x W_K W_Q^T`` and whose query is the layer input.

    If the value reads the key's projection, W_Q^T is inverted and the output projection undoes
    it.
    """
    layer = make_plain(layer)
    config, sharing = layer.config, layer.config.variant.sharing
    _check_head(layer, "query")
    check_terms(layer)
    if config.variant.positions == "rotary":
        raise UsageError(
            f"expected no rotary positions in {layer.name}, which come between query and key"
        )
    if config.variant.core_name != "softmax":
        raise UsageError(
            f"expected the core softmax in {layer.name}, got {config.variant.core_name}, which "
            "reads query and key separately"
        )
    check_bias(layer, sharing.query)
    weights, size = dict(layer.weights), config.d_model
    query = weights.pop("q_proj.weight") * config.identity_correction
    scale_sources(weights, (QUERY_ROPE,), config.identity_correction)
    weights.pop("q_proj.bias", None)
    conditioning: tuple[Conditioning, ...] = ()
    if sharing.key == IDENTITY:
        weights["k_proj.weight"] = torch.eye(size, dtype=query.dtype)
        if config.bias:
            weights["k_proj.bias"] = torch.zeros(size, dtype=query.dtype)
    elif sharing.value == sharing.key:
        conditioning = (measure_condition(query, f"W_Q of {layer.name}"),)
        # From here on, values are v W_Q^T.
        out = weights["o_proj.weight"]
        weights["o_proj.weight"] = torch.linalg.solve(query.mT, out, left=False)
    for name in ("k_proj.weight", "k_proj.bias"):
        if name in weights:
            weights[name] = query.mT @ weights[name]
    merged = _share(config, share(IDENTITY, "k", sharing.value))
    return scale_scores(LayerDraft(merged, weights, layer.name), 1.0), conditioning


def merge_value(layer: LayerDraft) -> LayerDraft:
    """Return a layer whose value is the layer input and whose output projection is ``W_V W_O``."""
    config, sharing = layer.config, layer.config.variant.sharing
    _check_head(layer, "value")
    if config.value_rope != "none":
        raise UsageError(f"expected a value that is not rotated in {layer.name}")
    check_bias(layer, sharing.value)
    weights = dict(layer.weights)
    config = release_bias(config, weights, sharing.value)
    matrix = weights.pop("v_proj.weight")
    if "v_proj.down" in weights:
        matrix = matrix @ weights.pop("v_proj.down")
    weights["o_proj.weight"] = weights["o_proj.weight"] @ matrix
    changed = share(sharing.query, sharing.key, IDENTITY)
    variant = dataclasses.replace(config.variant, v_rank=None)
    config = dataclasses.replace(config, variant=variant)
    merged = LayerDraft(_share(config, changed), weights, layer.name)
    return scale_scores(merged, layer.config.identity_correction)


def _share(config: AttentionConfig, sharing: Sharing) -> AttentionConfig:
    # With one head there are no KV heads to share.
    variant = dataclasses.replace(config.variant, sharing=sharing, num_kv_heads=None)
    return dataclasses.replace(config, variant=variant)


def _check_head(layer: LayerDraft, role: Role) -> None:
    """Refuse several heads, a narrow head, and a role that shares its projection."""
    config = layer.config
    source: Source = config.variant.sharing.roles[role]
    if config.num_heads > 1 or config.size_per_head != config.d_model:
        raise UsageError(
            f"expected one head of {config.d_model} channels in {layer.name}, got "
            f"{config.num_heads} of {config.size_per_head}"
        )
    alone = config.variant.sharing.readers(source) == (role,)
    if source == IDENTITY or not alone or config.variant.query_form == "map":
        raise UsageError(
            f"expected a {role} with its own projection in {layer.name}, got "
            f"{format_label(config.variant)}"
        )
