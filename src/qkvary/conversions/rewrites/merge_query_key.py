"""The query of a single head is merged into its key: W_Q W_K^T is one matrix."""

from qkvary.conversions.attention_bases import LayerDraft
from qkvary.conversions.bases import change_layers
from qkvary.conversions.draft import Conditioning, Draft, RewriteOptions, Rewritten
from qkvary.conversions.merging import merge_query

STATEMENT = "Proposition 4.1"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return a network whose single heads compare the layer input with one projection."""
    measured: list[Conditioning] = []

    def change(layer: LayerDraft) -> LayerDraft:
        merged, conditioning = merge_query(layer)
        measured.extend(conditioning)
        return merged

    change_layers(draft, options.layer, change)
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
