"""8-bit weights: the matrices of a network as codes, with one scale per 64 numbers of a row.

The weights are decoded whenever a layer uses them; a native step uses the codes directly.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn
from torch.nn.utils import parametrize

from qkvary.nn.cache_codes import check_finite, dequantize_tokens, quantize_tokens
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.projections import LowRank

BITS = 8
GROUP = 64
"""Number of values of a row that share a scale; the last group of a row may be smaller."""


class Numbers(NamedTuple):
    """A parameter of a network in its stored form: values, or codes with scales."""

    module: nn.Module
    name: str
    """The name of the parameter in the module."""
    stored: Tensor
    """The values of the tensor, or their codes."""
    scales: Float[Tensor, "width groups"] | None
    """The scales of the codes, one per ``GROUP`` values of a row; None if there are no codes."""
    dtype: torch.dtype
    """The dtype in which layers use the values."""


class Dequantized(nn.Module):
    """Decodes a parameter's numbers from codes; used as a parametrization."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(
        self, codes: Int8[Tensor, "width inner"], scales: Float[Tensor, "width groups"]
    ) -> Float[Tensor, "width inner"]:
        """Return the decoded values."""
        wide = torch.promote_types(self.dtype, torch.float32)
        numbers = torch.empty(1, 1, *codes.shape, dtype=wide, device=codes.device)
        bits = codes.view(torch.uint8)[None, None]
        dequantize_tokens(bits, scales[None, None], BITS, GROUP, numbers)
        return numbers[0, 0].to(self.dtype)

    def right_inverse(
        self, weight: Float[Tensor, "width inner"]
    ) -> tuple[Int8[Tensor, "width inner"], Float[Tensor, "width groups"]]:
        """Quantise a weight: return its codes and scales."""
        codes, scales = quantize_tokens(weight[None, None], BITS, GROUP)
        return codes[0, 0].contiguous().view(torch.int8), scales[0, 0]


@torch.no_grad()
def quantize_weights(model: LanguageModel) -> LanguageModel:
    """Replace a network's matrices by 8-bit codes; afterwards the network can only decode.

    Parameters are not changed if a token reads only few of their numbers: norms, biases, tables of
    positions, the query map of each head, an embedding that is not tied to the output head, and the
    parameters of score terms. Cast and move the network first, and set it to evaluation mode.

    Raises:
        ValueError: if the network is in training mode, has 8-bit weights already, or has weights
            that are not finite or too large for a scale.
    """
    if model.training:
        raise ValueError("expected a network in evaluation mode, got a network in training mode")
    if any(numbers.scales is not None for numbers in find_numbers(model)):
        raise ValueError("expected float weights, got a network with 8-bit weights")
    found = list(_matrices(model))
    check_finite((getattr(module, name) for module, name in found), "weights")
    for module, name in found:
        weight = getattr(module, name)
        weight.requires_grad_(requires_grad=False)
        # Unsafe, because codes have another dtype than the weights.
        parametrize.register_parametrization(module, name, Dequantized(weight.dtype), unsafe=True)
    return model


def find_numbers(model: nn.Module) -> Iterator[Numbers]:
    """Yield every parameter of a network in its stored form, the embedding first."""
    for module in list(model.modules()):
        if isinstance(module, parametrize.ParametrizationList):
            continue
        kept = getattr(module, "parametrizations", {})
        for name, part in kept.items():
            (dequantized,) = part
            yield Numbers(module, name, part.original0, part.original1, dequantized.dtype)
        for name, part in module.named_parameters(recurse=False):
            yield Numbers(module, name, part, None, part.dtype)


def _matrices(model: LanguageModel) -> Iterator[tuple[nn.Module, str]]:
    yield model, model.output_name
    for module in model.stack.modules():
        if isinstance(module, LowRank):
            yield module, "down"
        if isinstance(module, (LowRank, nn.Linear)):
            yield module, "weight"
