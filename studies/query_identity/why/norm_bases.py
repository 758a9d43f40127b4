"""A change of basis through a norm: what the layers before it would have to compute.

For a norm phi and an invertible matrix T there are a scale D and a function g with

    phi(g(x)) = phi(x) T D    for all x,

so that a stream g(x) in place of x, with a gain D^-1 after the norm, reads ``phi(x) T``. The
function exists, but it is no linear map, and no feed-forward network computes it exactly: a change
of basis passes no norm (:func:`measure_transfer` says how near a network comes).

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Lemma 8.1, Theorem 8.2 and
Remarks 5 to 7, whose formulas our copy of the text lacks.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkvary.storage.errors import UsageError

NormKind = Literal["layernorm", "rmsnorm", "tanh"]
"""Norms without gain and bias; ``tanh`` is the dynamic tanh of Zhu et al. 2025 with factor 1."""


@dataclass(frozen=True, slots=True)
class NormBasis:
    """A basis after a norm, and the function before it that leads into the basis."""

    kind: NormKind
    """The norm."""
    matrix: Float[Tensor, "width width"]
    """T D."""
    scale: Float[Tensor, " width"]
    """The diagonal of D; entries may be negative."""
    epsilon: float
    """The number that the norm adds to the mean of squares."""

    def normalise(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Return ``phi(x)``."""
        width = x.shape[-1]
        if self.kind == "tanh":
            return x.tanh()
        if self.kind == "rmsnorm":
            return F.rms_norm(x, (width,), eps=self.epsilon)
        return F.layer_norm(x, (width,), eps=self.epsilon)

    def denormalise(self, y: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Return the x of mean 0 (LayerNorm) with ``phi(x) = y``, for y in the image of phi."""
        if self.kind == "tanh":
            return y.atanh()
        left = 1.0 - y.square().mean(dim=-1, keepdim=True)
        return y * (self.epsilon / left).sqrt()

    def transfer(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Return ``g(x)``, one of the functions; any multiple of 1 may be added for LayerNorm."""
        return self.denormalise(self.normalise(x) @ self.matrix)


def find_norm_basis(
    kind: NormKind, matrix: Float[Tensor, "width width"], *, epsilon: float = 1e-5
) -> NormBasis:
    """Return the basis that a norm lets a matrix lead into.

    Args:
        kind: The norm.
        matrix: T, in float64.
        epsilon: The number that the norm adds to the mean of squares.

    Raises:
        UsageError: for LayerNorm and a matrix whose inverse takes the vector of ones to one with a
            zero: D would not be invertible.
    """
    ones = torch.ones(len(matrix), dtype=matrix.dtype)
    if kind == "tanh":
        # The image is a cube: no column may add up to more than 1.
        return _scaled(kind, matrix, ones / matrix.abs().sum(dim=0).max(), epsilon)
    if kind == "rmsnorm":
        return _scaled(kind, matrix, ones / torch.linalg.matrix_norm(matrix, 2), epsilon)
    # Row vectors of mean 0 stay so: y T D 1 = y 1 = 0.
    own = torch.linalg.solve(matrix, ones)
    if float(own.abs().min()) <= 1e-12 * float(own.abs().max()):
        raise UsageError("expected T^-1 1 without zeros for LayerNorm, got one with a zero")
    centred = torch.eye(len(matrix), dtype=matrix.dtype) - 1.0 / len(matrix)
    size = torch.linalg.matrix_norm(centred @ matrix @ torch.diag(own), 2)
    return _scaled(kind, matrix, own / size, epsilon)


def _scaled(kind: NormKind, matrix: Tensor, scale: Tensor, epsilon: float) -> NormBasis:
    return NormBasis(kind, matrix * scale, scale, epsilon)


def measure_linearity(basis: NormBasis, *, is_unit: bool = False, seed: int = 0) -> float:
    """Return the relative L2 error of the best linear map for g itself, on new inputs.

    Args:
        basis: The basis after the norm.
        is_unit: Whether inputs have norm 1; standard normal otherwise.
        seed: Of the inputs.
    """
    width, generator = len(basis.matrix), torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        x = torch.randn(16 * width, width, generator=generator, dtype=torch.float64)
        return F.normalize(x, dim=-1) if is_unit else x

    known, new = draw(), draw()
    linear = torch.linalg.lstsq(known, basis.transfer(known)).solution
    return float(_relative(new @ linear, basis.transfer(new)).sqrt())


class Transfer(NamedTuple):
    """Relative L2 errors of fitted maps against ``g(x + MLP(x))`` on new inputs."""

    linear: float
    """The best linear map."""
    network: float
    """A feed-forward network of the same shape, with a skip and trained."""


def measure_transfer(
    basis: NormBasis, *, d_ff: int, steps: int = 2000, batch: int = 512, seed: int = 0
) -> Transfer:
    """Train a network to lead the output of a block into another basis, and measure its error.

    The target is g of a random block ``x + W_2 gelu(W_1 x)`` with standard normal x.

    Args:
        basis: The basis after the norm that follows.
        d_ff: Inner width of both networks.
        steps: Steps of Adam.
        batch: Rows of a step.
        seed: Of matrices and inputs.
    """
    width, generator = len(basis.matrix), torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int, std: float = 1.0) -> Tensor:
        return std * torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    block = (draw(width, d_ff, width**-0.5), draw(d_ff, width, d_ff**-0.5))

    def target(x: Tensor) -> Tensor:
        return basis.transfer(x + F.gelu(x @ block[0]) @ block[1])

    many = draw(64 * width, width)
    linear = torch.linalg.lstsq(many, target(many)).solution
    # From the best linear map, so that the network cannot end worse than it.
    start = (draw(width, d_ff, width**-0.5), torch.zeros(d_ff, width, dtype=torch.float64))
    learned = [part.clone().requires_grad_() for part in (linear, *start)]
    optimizer = torch.optim.Adam(learned, lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x = draw(batch, width)
        optimizer.zero_grad()
        _relative(_student(x, learned), target(x)).backward()
        optimizer.step()
        schedule.step()
    x = draw(64 * width, width)
    with torch.no_grad():
        errors = _relative(x @ linear, target(x)), _relative(_student(x, learned), target(x))
    return Transfer(*(float(error.sqrt()) for error in errors))


def _student(x: Tensor, learned: list[Tensor]) -> Tensor:
    around, up, down = learned
    return x @ around + F.gelu(x @ up) @ down


def _relative(found: Tensor, expected: Tensor) -> Tensor:
    return (found - expected).square().sum() / expected.square().sum()
