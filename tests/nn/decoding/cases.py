"""Calls of decoding attention for tests: random tensors, how near results must be, kernels."""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from qkvary.nn.decoding import folded, native, triton_attention
from qkvary.nn.decoding.build import find_compiler

HERE = [*folded.FORMS, *(["native"] if find_compiler() else [])]
"""The kernels for this CPU. A machine without a compiler is normal."""

KERNELS = [*HERE, *(["triton"] if triton_attention.is_interpreted() else [])]
"""Every kernel that runs here; that for GPUs in its interpreter."""

GATES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 0.15}


def kernels_for(dtype: torch.dtype, device: str = "cpu") -> list[str]:
    """The kernels that take queries of a type, here or on a GPU."""
    named = KERNELS if device == "cpu" else [*folded.FORMS, "triton"]
    types = {"native": native.STORAGE, "triton": triton_attention.TYPES}
    return [name for name in named if dtype in types.get(name, GATES)]


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32, spread: float = 1.0) -> Tensor:
    """Normal numbers; the seed is the caller's."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * spread).to(dtype)


def distance(result: Tensor, expected: Tensor) -> float:
    """The largest deviation, over the size of what is expected."""
    size = expected.double().square().mean().sqrt().clamp(min=1e-6)
    return float((result.double() - expected.double()).abs().max() / size)


def attend_stored(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    valid: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The last queries over all stored keys, by torch in float64; zeros where one sees nothing."""
    query, key, value = query.double(), key.double(), value.double()
    queries, tokens = query.shape[2], key.shape[2]
    seen = torch.ones(queries, tokens).bool().tril(tokens - queries)
    seen = seen if valid is None else seen & valid[:, None, None]
    added = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    added = added if bias is None else added + bias
    with sdpa_kernel(SDPBackend.MATH):
        mixed = scaled_dot_product_attention(query, key, value, added, scale=scale, enable_gqa=True)
    return mixed.nan_to_num()
