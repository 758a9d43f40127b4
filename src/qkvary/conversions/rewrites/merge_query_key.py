"""Merges the query of a single head into its key: W_Q W_K^T is one matrix.

If the head is as wide as the layer, one matrix replaces two. Only the attention layer changes, so
norms and skips do not matter. Rotary positions come between query and key and prevent the merge.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Proposition 4.1.
"""

from functools import partial

import torch

from qkvary.arch.labels import format_label
from qkvary.arch.sharing import IDENTITY, QUERY_ROPE, Role, Source, share
from qkvary.conversions.attention_bases import (
    LayerDraft,
    check_bias,
    check_terms,
    make_plain,
    replace_variant,
    scale_scores,
    scale_sources,
)
from qkvary.conversions.bases import change_layers
from qkvary.conversions.draft import (
    Conditioning,
    Draft,
    RewriteOptions,
    Rewritten,
    measure_condition,
)
from qkvary.storage.errors import UsageError

STATEMENT = "Proposition 4.1"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Merge the query projection of single-head layers into the key: ``x`` itself is the query."""
    measured: list[Conditioning] = []
    change_layers(draft, options.layer, partial(_merge, measured=measured))
    return Rewritten(
        config=draft.config,
        weights=draft.weights,
        statement=f"{STATEMENT} (any skips and norms)",
        conditions=(
            "one head as wide as the layer",
            "a linear query with a separate projection",
            "keys and values that are projections",
            "no rotary positions",
            "the core softmax",
            "no query bias",
        ),
        conditioning=tuple(measured),
    )


def _merge(layer: LayerDraft, measured: list[Conditioning]) -> LayerDraft:
    """Return a layer whose key is ``x W_K W_Q^T`` and whose query is the layer input.

    If the value shares the key's projection, it is multiplied by W_Q^T too, and the output
    projection undoes that.
    """
    layer = make_plain(layer)
    config, sharing = layer.config, layer.config.variant.sharing
    check_head(layer, "query")
    check_terms(layer)
    if config.variant.positions == "rotary":
        raise UsageError(
            f"expected no rotary positions in {layer.name}, because they come between query and key"
        )
    if config.variant.core_name != "softmax":
        raise UsageError(
            f"expected the core softmax in {layer.name}, got {config.variant.core_name}, which "
            "uses query and key separately"
        )
    check_bias(layer, sharing.query)
    weights, size = dict(layer.weights), config.d_model
    query = weights.pop("q_proj.weight") * config.identity_correction
    scale_sources(weights, (QUERY_ROPE,), config.identity_correction)
    weights.pop("q_proj.bias", None)
    if sharing.key == IDENTITY:
        weights["k_proj.weight"] = torch.eye(size, dtype=query.dtype)
        if config.bias:
            weights["k_proj.bias"] = torch.zeros(size, dtype=query.dtype)
    elif sharing.value == sharing.key:
        measured.append(measure_condition(query, f"W_Q of {layer.name}"))
        # From here on, values are v W_Q^T.
        out = weights["o_proj.weight"]
        weights["o_proj.weight"] = torch.linalg.solve(query.mT, out, left=False)
    for name in ("k_proj.weight", "k_proj.bias"):
        if name in weights:
            weights[name] = query.mT @ weights[name]
    changed = share(IDENTITY, "k", sharing.value)
    merged = replace_variant(config, sharing=changed, num_kv_heads=None)
    return scale_scores(LayerDraft(merged, weights, layer.name), 1.0)


def check_head(layer: LayerDraft, role: Role) -> None:
    """Refuse a layer without exactly one head of full width, or whose role shares a projection."""
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
