"""Forecasts the rise of the loss if one tensor serves as both key and value.

The forecast is a second-order expansion in the change of keys and values. It uses derivatives of
the loss, so the effect of attention weights, rotations, score terms and all later layers is
included.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

DAMPING = 1e-3
"""Damping of a second moment, relative to its size, for directions that the text lacks."""


class Tie(NamedTuple):
    """The best single tensor for key and value of one KV head."""

    forecast: float
    """The rise of the loss in nats per token, with the curvature for which the tensor is best."""
    error: Float[Tensor, "joint joint"]
    """The second moment of the error of z = [k, v]."""
    reader: Float[Tensor, "head_dim joint"]
    """The matrix R that computes the tensor t = R z from z = [k, v]."""
    writer: Float[Tensor, "joint head_dim"]
    """The matrix B that approximates z by B t, both measured from their means."""


def forecast_tie(
    moments: Float[Tensor, "joint joint"], curvature: Float[Tensor, "joint joint"]
) -> Tie:
    """Return the best tensor of ``head_dim`` channels for key and value, with its forecast.

    ``moments`` is the covariance S of a token's z = [k, v]. ``curvature`` is M = E[g g^T], where g
    is the derivative of the loss with respect to z. An error e of z that is independent between
    tokens raises the loss by 1/2 tr(M E[e e^T]) nats per token. If z is reduced to rank
    ``head_dim``, which is half the number of its channels, the loss rises by at least half the sum
    of the smaller half of the eigenvalues of M^1/2 S M^1/2.

    M is damped by adding a multiple of the inverse covariances of k and of v. A change of the basis
    of a head changes these inverses in the same way as M, so the forecast does not depend on the
    basis.
    """
    joint = len(moments)
    size = joint // 2
    scale = DAMPING * float((moments * curvature).sum()) / joint
    halves = (slice(0, size), slice(size, joint))
    inverses = (torch.linalg.pinv(moments[part, part], hermitian=True) for part in halves)
    damped = curvature + scale * torch.block_diag(*inverses)
    values, vectors = torch.linalg.eigh(damped)
    # Only directions in which the weight has no rank are dropped.
    kept = values > values.max() * torch.finfo(values.dtype).eps * joint
    roots = values.clamp(min=0).sqrt()
    root = (vectors * roots) @ vectors.mT
    inverse = (vectors[:, kept] / roots[kept]) @ vectors[:, kept].mT
    energies, directions = torch.linalg.eigh(root @ moments @ root)
    # The error of z M^1/2 is its part in the dropped directions.
    error = inverse @ directions[:, :size] * energies[:size].clamp(min=0).sqrt()
    return Tie(
        forecast=float(energies[:size].clamp(min=0).sum()) / 2,
        error=error @ error.mT,
        reader=directions[:, size:].mT @ root,
        writer=inverse @ directions[:, size:],
    )


def cross_forecast(
    moments: Float[Tensor, "joint joint"],
    curvatures: tuple[Float[Tensor, "joint joint"], ...],
) -> float:
    """Return the forecast on text that was not used to choose the tensor, in nats per token.

    The tensor chosen on each half of the text is evaluated with the curvature of the other half. On
    its own half, the forecast would be too low: the tensor drops directions that seem unimportant
    only because they are missing from that half.
    """
    one, other = curvatures
    errors = [forecast_tie(moments, chosen).error for chosen in (one, other)]
    return float((errors[0] * other).sum() + (errors[1] * one).sum()) / 4
