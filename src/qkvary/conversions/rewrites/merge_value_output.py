"""Merges the value of a single head into the output projection: W_V W_O is one matrix.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Remark 1.
"""

from qkvary.arch.sharing import IDENTITY, share
from qkvary.conversions.attention_bases import (
    LayerDraft,
    check_bias,
    release_bias,
    replace_variant,
    scale_scores,
)
from qkvary.conversions.bases import change_layers
from qkvary.conversions.draft import Draft, RewriteOptions, Rewritten
from qkvary.conversions.rewrites.merge_query_key import check_head
from qkvary.storage.errors import UsageError

STATEMENT = "Proposition 4.1, Remark 1"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Merge the value projection of single-head layers into the output projection."""
    change_layers(draft, options.layer, _merge)
    return Rewritten(
        config=draft.config,
        weights=draft.weights,
        statement=f"{STATEMENT} (any skips and norms)",
        conditions=(
            "one head as wide as the layer",
            "a separate value that is not rotated",
            "the core softmax if the value has a bias",
        ),
    )


def _merge(layer: LayerDraft) -> LayerDraft:
    """Return a layer whose value is the layer input and whose output projection is ``W_V W_O``."""
    config, sharing = layer.config, layer.config.variant.sharing
    check_head(layer, "value")
    if config.value_rope != "none":
        raise UsageError(
            f"expected a value that is not rotated in {layer.name}, got value_rope "
            f"{config.value_rope}"
        )
    check_bias(layer, sharing.value)
    weights = dict(layer.weights)
    config = release_bias(config, weights, sharing.value)
    matrix = weights.pop("v_proj.weight")
    if "v_proj.down" in weights:
        matrix = matrix @ weights.pop("v_proj.down")
    weights["o_proj.weight"] = weights["o_proj.weight"] @ matrix
    changed = share(sharing.query, sharing.key, IDENTITY)
    config = replace_variant(config, sharing=changed, num_kv_heads=None, v_rank=None)
    merged = LayerDraft(config, weights, layer.name)
    return scale_scores(merged, layer.config.identity_correction)
