"""Label smoothing on the fused loss of a head: targets leave some probability to other tokens."""

import math

from jaxtyping import Float, Int
from torch import Tensor

from qkvary.nn.fused_loss import IGNORE_INDEX, linear_cross_entropy


def smoothed_loss_sum(
    features: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "vocabulary d_model"],
    bias: Float[Tensor, " vocabulary"] | None,
    targets: Int[Tensor, " tokens"],
    *,
    smoothing: float,
    excluded: int,
) -> Float[Tensor, ""]:
    """Return the sum over counted tokens of KL(smoothed target || softmax(features W^T + b)).

    The target of a token t is 1 - s on t, 0 on the excluded token, which is padding, and c = s/(V -
    2) on every other. With logits z and their sum S,

        KL = (1-s) log(1-s) + s log c + logsumexp(z) - z_t + (s + c) z_t - c (S - z_excluded).

    Only the cross entropy needs all logits. The sum is in nats; a target of -100 does not count.
    """
    # Indices instead of masks: the host waits for a GPU only once.
    (counted,) = (targets != IGNORE_INDEX).nonzero(as_tuple=True)
    features, targets = features[counted], targets[counted]
    loss = linear_cross_entropy(features, weight, bias, targets)
    if not smoothing:
        return loss
    share = smoothing / (len(weight) - 2)
    constant = (1 - smoothing) * math.log1p(-smoothing) + smoothing * math.log(share)
    right = (features * weight[targets]).sum()
    others = features.sum(0) @ (weight.sum(0) - weight[excluded])
    if bias is not None:
        right = right + bias[targets].sum()
        others = others + len(targets) * (bias.sum() - bias[excluded])
    return loss + len(targets) * constant + (smoothing + share) * right - share * others
