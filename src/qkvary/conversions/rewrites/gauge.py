"""Heads in a random gauge: other matrices of query and key, value and output, the same network."""

import torch

from qkvary.conversions.attention_bases import LayerDraft
from qkvary.conversions.bases import change_layers
from qkvary.conversions.draft import (
    Conditioning,
    Draft,
    RewriteOptions,
    Rewritten,
    measure_condition,
)
from qkvary.conversions.gauges import apply_gauge, draw_gauge

STATEMENT = "Proposition 4.2"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return the network with its heads in a random gauge of the seed; its label is the same."""
    generator = torch.Generator().manual_seed(options.seed)
    measured: list[Conditioning] = []

    def change(layer: LayerDraft) -> LayerDraft:
        gauge = draw_gauge(layer, generator)
        for letter, matrices in (("A", gauge.key), ("B", gauge.value)):
            worst = max(matrices, key=lambda one: float(torch.linalg.cond(one)))
            measured.append(measure_condition(worst, f"{letter} of {layer.name}"))
        return apply_gauge(layer, gauge)

    change_layers(draft, options.layer, change)
    return Rewritten(
        config=draft.config,
        weights=draft.weights,
        statement=f"{STATEMENT} (any skips and norms)",
        conditions=(
            "the core softmax",
            "keys and values that are projections",
            "a key or value that no identity fixes",
        ),
        conditioning=tuple(measured),
    )
