"""The value of a single head is merged into the output projection: W_V W_O is one matrix."""

from qkvary.conversions.bases import change_layers
from qkvary.conversions.draft import Draft, RewriteOptions, Rewritten
from qkvary.conversions.merging import merge_value

STATEMENT = "Proposition 4.1, Remark 1"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return a network whose single heads mix the layer input itself."""
    change_layers(draft, options.layer, merge_value)
    return Rewritten(
        config=draft.config,
        weights=draft.weights,
        statement=f"{STATEMENT} (any skips and norms)",
        conditions=(
            "one head as wide as the layer",
            "a separate value that is not rotated",
            "a value bias under the core softmax alone",
        ),
    )
