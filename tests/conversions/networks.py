"""Networks to rewrite, and the judge of what comes out: the plain loops in float64."""

import math
from typing import Any

import torch
from torch import Tensor

from qkvary.arch.labels import format_label
from qkvary.arch.networks import BlockConfig
from qkvary.conversions.draft import RewriteOptions
from qkvary.conversions.rewriting import Rewriting, run_rewrite
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import distance, randomize
from tests.reference.networks import language_model_logits
from tests.small_networks import small_config

EXACT = 1e-11
"""Of the root mean square of the logits: rounding at the condition numbers of random matrices."""


def make_network(
    label: str, *, heads: int = 4, head_dim: int = 5, seed: int = 5, **fields: Any
) -> LanguageModel:
    """A small network in float64 whose scores have a deviation of about 1, without norms."""
    usual: dict[str, Any] = {
        "bias": False,
        "relative_distance": 2,
        "block": BlockConfig(d_ff=11, norm="none", skips="attention"),
        "max_tokens": 9,
    }
    sizes = {"d_model": heads * head_dim, "num_heads": heads}
    config = small_config(label, **sizes, **(usual | fields))
    network = LanguageModel(config).double().eval()
    randomize(network, seed)
    # Without norms the stream is as small as the embedding, and scores with it.
    network.embedding.data.mul_(4.0)
    return network


def convert(network: LanguageModel, name: str, **options: int) -> Rewriting:
    """Rewrite a network."""
    return run_rewrite(name, network, RewriteOptions(**options))


def judge(first: LanguageModel, second: LanguageModel) -> float:
    """The largest difference of logits, by the reference, over their root mean square."""
    found: list[Tensor] = []
    tokens = torch.tensor([[1, 12, 3, 3, 0, 7]])
    for network in (second, first):
        weights = {name: one.detach().double() for name, one in network.state_dict().items()}
        found.append(language_model_logits(network.config, weights, tokens))
    return distance(*found)


def labels(network: LanguageModel) -> list[str]:
    """The label of every layer."""
    return [format_label(layer.variant) for layer in network.config.layers]


def count(network: LanguageModel) -> int:
    """Learned numbers."""
    return sum(parameter.numel() for parameter in network.parameters())


def orthogonal(size: int, seed: int) -> Tensor:
    """A random orthogonal matrix."""
    noise = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(noise.double()).Q


def spread(size: int, number: float, seed: int) -> Tensor:
    """A random matrix of a condition number."""
    values = torch.logspace(0, -math.log10(number), size, dtype=torch.float64)
    return 2 * orthogonal(size, seed) @ torch.diag(values) @ orthogonal(size, seed + 1)


def set_query(network: LanguageModel, index: int, matrix: Tensor) -> None:
    """Put a matrix in the place of a query's."""
    [*network.stack.blocks][index].attention.projections["q"].weight.data.copy_(matrix)
