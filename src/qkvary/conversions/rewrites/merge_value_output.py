"""The value of a single head becomes part of the output projection: W_V W_O is one matrix."""

from qkvary.arch.attention import AttentionConfig
from qkvary.conversions.bases import attention_draft
from qkvary.conversions.draft import (
    Draft,
    RewriteOptions,
    Rewritten,
    block_prefix,
    choose_blocks,
    replace_layers,
)
from qkvary.conversions.merging import merge_value

STATEMENT = "Proposition 4.1, Remark 1"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return a network whose single heads mix the layer input itself."""
    layers: dict[int, AttentionConfig] = {}
    for index in choose_blocks(draft, options.layer):
        layer = merge_value(attention_draft(draft, index))
        layers[index] = layer.config
        draft.replace_part(f"{block_prefix(index)}attention.", layer.weights)
    return Rewritten(
        config=replace_layers(draft.config, layers),
        weights=draft.weights,
        statement=f"{STATEMENT} (any skips and norms)",
        conditions=(
            "one head as wide as the layer",
            "a value of its own that is not rotated",
            "a value bias under the core softmax alone",
        ),
    )
