"""The query of a single head becomes part of its key: W_Q W_K^T is one matrix."""

from qkvary.arch.attention import AttentionConfig
from qkvary.conversions.bases import attention_draft
from qkvary.conversions.draft import (
    Conditioning,
    Draft,
    RewriteOptions,
    Rewritten,
    block_prefix,
    choose_blocks,
    replace_layers,
)
from qkvary.conversions.merging import merge_query

STATEMENT = "Proposition 4.1"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return a network whose single heads compare the layer input with one projection."""
    layers: dict[int, AttentionConfig] = {}
    measured: list[Conditioning] = []
    for index in choose_blocks(draft, options.layer):
        layer, conditioning = merge_query(attention_draft(draft, index))
        measured += conditioning
        layers[index] = layer.config
        draft.replace_part(f"{block_prefix(index)}attention.", layer.weights)
    return Rewritten(
        config=replace_layers(draft.config, layers),
        weights=draft.weights,
        statement=f"{STATEMENT} (any skips and norms)",
        conditions=(
            "one head as wide as the layer",
            "a linear query with a projection of its own",
            "keys and values that are projections",
            "no rotary positions",
            "the core softmax",
            "no query bias",
        ),
        conditioning=tuple(measured),
    )
