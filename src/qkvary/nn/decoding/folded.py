"""Two forms of decoding attention in plain torch. Both run on any device.

They accept fewer KV heads than query heads without copying keys: they fold the heads of a group
into the queries.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkvary.nn.decoding.problem import Decoding

Mixed = Float[Tensor, "batch heads queries value_dim"]


def attend_folded(problem: Decoding) -> Mixed:
    """Attend with the fused kernel over folded queries."""
    visible = problem.folded_visible()
    query, key, value = problem.folded_query(), problem.key, problem.value
    wider = key.shape[-1] - value.shape[-1]
    # Fused kernels need equal widths; padding by zero would still copy.
    if wider < 0:
        query, key = F.pad(query, (0, -wider)), F.pad(key, (0, -wider))
    mask, bias = visible, problem.folded_bias()
    if bias is not None:
        # Fused kernels expect hidden keys at minus infinity.
        mask = bias.to(problem.query.dtype)
        mask = mask if visible is None else mask.masked_fill(~visible, -torch.inf)
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        F.pad(value, (0, wider)) if wider > 0 else value,
        attn_mask=mask,
        scale=problem.scale,
    )
    return problem.unfold(_blank(mixed[..., : value.shape[-1]], visible))


def attend_matmul(problem: Decoding) -> Mixed:
    """Attend with two matmuls and the full score matrix between them."""
    visible = problem.folded_visible()
    query, bias = problem.folded_query() * problem.scale, problem.folded_bias()
    scores = query @ problem.key.mT
    if scores.dtype == torch.float16:
        # float16 ends at 65,504, and the softmax of infinities is NaN.
        largest = torch.finfo(scores.dtype).max
        scores = scores.clamp_(-largest, largest)
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill_(~visible, -torch.inf)
    mixed = torch.softmax(scores, dim=-1).to(problem.value.dtype) @ problem.value
    return problem.unfold(_blank(mixed, visible))


def _blank(mixed: Tensor, visible: Tensor | None) -> Tensor:
    """Replace the output of queries that see no key by zeros."""
    if visible is None:
        return mixed
    return torch.where(visible.any(dim=-1, keepdim=True), mixed, 0.0)


FORMS: Mapping[str, Callable[[Decoding], Tensor]] = {
    "folded": attend_folded,
    "matmul": attend_matmul,
}
"""The implementations of folded attention, by kernel name."""
