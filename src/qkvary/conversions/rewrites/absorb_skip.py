"""Absorbs the skips around ReLU feed-forward networks. Very few networks allow this.

A skip can be absorbed if a set I of inner channels fulfils ``-W_2 P_I W_1 = 1``, where P_I keeps
the channels of I and sets the others to zero. Then ``x + W_2 relu(W_1 x) = W_2 relu(W_1' x)`` for
all x, with ``W_1' = (1 - 2 P_I) W_1``, because ``relu(-z) = relu(z) - z``. Almost no network has
such a set.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Theorem 8.3, Corollary 8.3.1.
"""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkvary.conversions.draft import Draft, RewriteOptions, Rewritten, block_prefix
from qkvary.storage.errors import UsageError

STATEMENT = "Theorem 8.3"
_TOLERANCE = 1e-9
"""``-W_2 P_I W_1`` counts as the identity if it differs by at most this."""
_DEPENDENT = 1e-12
"""Products count as independent if the smallest eigenvalue of their Gram matrix exceeds this share
of the largest."""
_COLLINEAR = 1e-12
"""Rows count as collinear if the absolute value of their cosine differs from 1 by at most this."""


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return a network without the skips around its feed-forward networks."""
    config, block = draft.config, draft.config.block
    if options.layer is not None:
        raise UsageError("expected no layer number with absorb-skip, which changes all layers")
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


@dataclass(frozen=True, slots=True)
class SkipDecision:
    """The decision whether the skip around a ReLU network can be absorbed."""

    channels: Bool[Tensor, " d_ff"] | None
    """The inner channels whose sign changes; ``None`` if the skip cannot be absorbed,
    or if this is not decided."""
    reason: str
    """The reason for the decision, as a clause of a sentence."""


def decide_skip(
    up: Float[Tensor, "d_ff d_model"], down: Float[Tensor, "d_model d_ff"]
) -> SkipDecision:
    """Decide whether a ReLU network of the same width can compute ``x + W_2 relu(W_1 x)`` alone.

    The equation ``sum_i c_i w2_i w1_i^T = -1`` is solved for c. If every c_i is 0 or 1, the sign of
    the channels with c_i = 1 has to change. Both matrices are in float64.

    If such channels exist, the skip can be absorbed. If none exist, it cannot be absorbed, but only
    if no two rows of W_1 are collinear, no row of W_1 is zero and no column of W_2 is zero.

    Returns:
        The channels, or ``None`` with the reason: either no set of channels solves the equation, or
        the question stays open, because products are linearly dependent or rows are collinear.
    """
    gram = (down.mT @ down) * (up @ up.mT)
    values = torch.linalg.eigvalsh(gram)
    if float(values[0]) <= _DEPENDENT * float(values[-1]):
        return SkipDecision(
            None,
            "products of columns and rows are linearly dependent, so the method cannot decide",
        )
    coefficients = torch.linalg.solve(gram, -(up * down.mT).sum(dim=1))
    channels = coefficients > 0.5
    products = down[:, channels] @ up[channels]
    distance = float((products + torch.eye(len(down))).abs().max())
    if distance > _TOLERANCE and _has_collinear_rows(up):
        return SkipDecision(
            None,
            f"rows of W_1 are collinear, which {STATEMENT} excludes, so the method cannot decide",
        )
    if distance > _TOLERANCE:
        return SkipDecision(
            None,
            "-W_2 P W_1 is not the identity for any set of channels: for the most likely set, the "
            f"entries differ from the identity by up to {distance:.2g}",
        )
    return SkipDecision(channels, f"-W_2 P W_1 = 1 for {int(channels.sum())} channels")


def _has_collinear_rows(matrix: Float[Tensor, "rows columns"]) -> bool:
    unit = torch.nn.functional.normalize(matrix, dim=1)
    cosines = (unit @ unit.mT).abs().fill_diagonal_(0.0)
    return float(cosines.max()) >= 1.0 - _COLLINEAR


def absorb_skip(weights: dict[str, Tensor], channels: Bool[Tensor, " d_ff"]) -> dict[str, Tensor]:
    """Return weights with which a ReLU network needs no skip; the sign of ``channels`` changes."""
    found, sign = dict(weights), 1.0 - 2.0 * channels.double()
    found["up.weight"] = sign[:, None] * weights["up.weight"]
    if "up.bias" in weights:
        bias = weights["up.bias"]
        found["up.bias"] = sign * bias
        # W_2 relu(-z) equals W_2 relu(z) - W_2 P W_1 x minus W_2 P b, which the bias adds back.
        found["down.bias"] = weights["down.bias"] + weights["down.weight"] @ (channels * bias)
    return found
