"""The reduction form of decoding attention, compiled by torch where there is a C++ compiler.

Products are written as sums of elementwise products, which the compiler fuses into one pass for the
scores and one for the mixture. For one row to a KV head it is the fastest that torch generates.
"""

import functools
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.nn.decoding.build import find_compiler
from qkvary.nn.decoding.problem import Decoding

MOST_ROWS = 16
"""With more rows per KV head, matrix products written as sums are too slow."""


def can_compile(problem: Decoding) -> bool:
    """Return whether the compiled kernel supports this call on this machine."""
    on_cpu = problem.key.device.type == "cpu"
    return on_cpu and problem.rows <= MOST_ROWS and find_compiler() is not None


def attend_compiled(problem: Decoding) -> Float[Tensor, "batch heads queries value_dim"]:
    """Attend; the first call with other types or numbers of dimensions compiles."""
    query = problem.folded_query() * problem.scale
    visible = problem.folded_visible()
    if visible is None:
        visible = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    bias = problem.folded_bias()
    if bias is None:
        bias = query.new_zeros(1, 1, 1, 1)
    mixed = _reductions()(query, problem.key, problem.value, bias, visible)
    return problem.unfold(torch.where(visible.any(dim=-1, keepdim=True), mixed, 0.0))


@functools.cache
def _reductions() -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    return torch.compile(reduce_products, dynamic=True)


def reduce_products(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, visible: Tensor
) -> Tensor:
    """Compute attention as sums of elementwise products; this function is compiled."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query[:, :, :, None].to(wide) * key[:, :, None].to(wide)).sum(dim=-1) + bias.to(wide)
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    return (weights[..., None] * value[:, :, None].to(wide)).sum(dim=-2).to(query.dtype)
