"""Absorbs the skips around ReLU feed-forward networks, which is possible for very few networks."""

import dataclasses

from qkvary.conversions.draft import Draft, RewriteOptions, Rewritten, block_prefix
from qkvary.conversions.relu_skips import absorb_skip, decide_skip
from qkvary.storage.errors import UsageError

STATEMENT = "Theorem 8.3"


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return a network without the skip around its feed-forward networks."""
    config, block = draft.config, draft.config.block
    if options.layer is not None:
        raise UsageError("expected no layer number with absorb-skip: it changes all layers")
    if block.activation != "relu":
        raise UsageError(f"expected the activation relu, got {block.activation}")
    if not block.has_feed_forward_skip:
        raise UsageError("expected a skip around the feed-forward network, got none")
    if block.norm != "none" and block.norm_placement.startswith("pre"):
        raise UsageError(
            f"expected no norm between the skip and its feed-forward network, got {block.norm}; "
            "choices: norm none, or the norm placements post, post-final, stream"
        )
    conditions = ["ReLU", "the feed-forward network and its skip have the same input"]
    for index in range(draft.blocks):
        prefix = f"{block_prefix(index)}feed_forward."
        weights = draft.part(prefix)
        decision = decide_skip(weights["up.weight"], weights["down.weight"])
        if decision.channels is None:
            raise UsageError(
                f"expected channels with -W_2 P W_1 = 1 in layer {index + 1} ({STATEMENT}), got "
                f"none: {decision.reason}"
            )
        conditions.append(f"layer {index + 1}: {decision.reason}")
        draft.replace_part(prefix, absorb_skip(weights, decision.channels))
    skips = "attention" if block.has_attention_skip else "none"
    return Rewritten(
        config=dataclasses.replace(config, block=dataclasses.replace(block, skips=skips)),
        weights=draft.weights,
        statement=STATEMENT,
        conditions=tuple(conditions),
    )
