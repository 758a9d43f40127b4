"""The loss of smoothed targets equals torch's divergence from targets that are written out."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkvary.nn.fused_loss import smoothed_loss_sum

VOCABULARY, PADDING = 11, 1


def smooth(targets: Tensor, smoothing: float, vocabulary: int = VOCABULARY) -> Tensor:
    """The rows of paper 2: most on the target, nothing on padding, the rest evenly."""
    share = smoothing / (vocabulary - 2)
    rows = torch.full((len(targets), vocabulary), share, dtype=torch.float64)
    for row, target in zip(rows, targets.tolist(), strict=True):
        row[target] = 1 - smoothing
        row[PADDING] = 0
    return rows


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("has_bias", [True, False])
def test_loss_and_gradients_are_those_of_the_divergence(smoothing: float, has_bias: bool) -> None:
    draw = torch.Generator().manual_seed(5)
    inputs = [
        torch.randn(*size, dtype=torch.float64, generator=draw) for size in ((7, 3), (11, 3), (11,))
    ]
    features, weight, bias = (part.requires_grad_() for part in inputs)
    used = bias if has_bias else None
    targets = torch.tensor([4, -100, 10, 0, 2, -100, 4])
    counted = targets != -100
    found = smoothed_loss_sum(
        features, weight, used, targets, smoothing=smoothing, excluded=PADDING
    )
    logits = F.linear(features, weight, used)[counted]
    expected = F.kl_div(
        logits.log_softmax(-1), smooth(targets[counted], smoothing), reduction="sum"
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    learned = [features, weight, *([bias] if has_bias else [])]
    ours, theirs = (torch.autograd.grad(loss, learned) for loss in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
