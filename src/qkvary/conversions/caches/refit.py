"""The output projection of a converted layer, fitted to the output of the original layer.

Ridge regression: the weights from the conversion are the prior. Only sums over tokens are kept.
"""

import torch
from jaxtyping import Float
from torch import Tensor

RIDGE = 0.02
"""Weight of the prior, as a share of the mean square of an input."""


def widen(read: Float[Tensor, "rows tokens channels"]) -> Float[Tensor, "inputs channels"]:
    """Return all tokens in float64, on their device if it supports float64."""
    rows = read.flatten(0, 1)
    return (rows.cpu() if rows.device.type == "mps" else rows).double()


class Regression:
    """Sums over tokens of ``y ~ z W``, from which W is found."""

    def __init__(self, prior: Float[Tensor, "inputs outputs"]) -> None:
        """Start without tokens.

        Args:
            prior: W before.
        """
        self.prior = prior.double().clone()
        size = len(prior)
        self._square = torch.zeros(size, size, dtype=torch.float64)
        self._product = torch.zeros(prior.shape, dtype=torch.float64)
        self._energy = 0.0

    def add(
        self, inputs: Float[Tensor, "tokens inputs"], wanted: Float[Tensor, "tokens outputs"]
    ) -> None:
        """Add tokens in float64, from any device."""
        self._square += (inputs.T @ inputs).cpu()
        self._product += (inputs.T @ wanted).cpu()
        self._energy += float(wanted.square().sum())

    def solve(self) -> Float[Tensor, "inputs outputs"]:
        """Return W."""
        damped = self._square.clone()
        damped.diagonal().add_(RIDGE * damped.diagonal().mean())
        # Inputs that are always zero determine no weight.
        damped.diagonal().clamp_(min=torch.finfo(damped.dtype).tiny)
        return self.prior + torch.linalg.solve(damped, self._product - self._square @ self.prior)

    def error(self, weight: Float[Tensor, "inputs outputs"]) -> float:
        """Return the squared error of W relative to the squares of the targets."""
        explained = (weight * (2 * self._product - self._square @ weight)).sum()
        return (self._energy - float(explained)) / max(self._energy, 1e-300)
