"""Heads in a random gauge: other matrices of query and key, value and output, the same network."""

import torch

from qkvary.conversions.bases import attention_draft
from qkvary.conversions.draft import (
    Conditioning,
    Draft,
    RewriteOptions,
    Rewritten,
    block_prefix,
    choose_blocks,
    measure_condition,
)
from qkvary.conversions.gauges import apply_gauge, draw_gauge

STATEMENT = "Proposition 4.2"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return a network of the same label whose heads are in a gauge of the seed."""
    generator = torch.Generator().manual_seed(options.seed)
    measured: list[Conditioning] = []
    for index in choose_blocks(draft, options.layer):
        layer = attention_draft(draft, index)
        gauge = draw_gauge(layer, generator)
        for letter, matrices in (("A", gauge.key), ("B", gauge.value)):
            worst = max(matrices, key=lambda one: float(torch.linalg.cond(one)))
            measured.append(measure_condition(worst, f"{letter} of {layer.name}"))
        draft.replace_part(f"{block_prefix(index)}attention.", apply_gauge(layer, gauge).weights)
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
