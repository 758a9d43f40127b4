"""The input and the output of a rewrite: weights, the options of the user, and the result.

Matrices act on row vectors here, as in the papers: ``q = x W_Q`` with ``W_Q`` of shape
[d_model, width]. Torch stores the transpose.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import LanguageModelConfig
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from qkvary.text.numbers import check_seed

MOST_CONDITION = 1e6
"""The largest condition number of a matrix that a rewrite inverts. Up to this number, logits stay
equal to within 1e-9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """The options of a rewrite; each rewrite uses those that apply to it."""

    layer: int | None = None
    """The layer to change, counted from 1; ``None`` for every layer."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)


@dataclass(slots=True)
class Draft:
    """A network that is being rewritten: its configuration, and its weights in float64.

    The weights have the names of the state dict.
    """

    config: LanguageModelConfig
    weights: dict[str, Tensor]

    @property
    def blocks(self) -> int:
        """Number of blocks with separate weights; 1 if all blocks share them."""
        return 1 if self.config.shared_blocks else self.config.num_layers

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the parameters whose names start with a prefix, with the prefix removed."""
        start = len(prefix)
        return {
            name[start:]: value for name, value in self.weights.items() if name.startswith(prefix)
        }

    def replace_part(self, prefix: str, weights: dict[str, Tensor]) -> None:
        """Replace all parameters whose names start with a prefix."""
        kept = {name: one for name, one in self.weights.items() if not name.startswith(prefix)}
        self.weights = kept | {f"{prefix}{name}": value for name, value in weights.items()}


@dataclass(frozen=True, slots=True)
class Conditioning:
    """A matrix that a rewrite inverts, with its condition number."""

    matrix: str
    """The name of the matrix, such as ``W_Q of layer 3``."""
    number: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A rewritten network."""

    config: LanguageModelConfig
    weights: dict[str, Tensor]
    """The parameters of the rewritten network in float64."""
    statement: str
    """The theorem or proposition that the rewrite applies."""
    conditions: tuple[str, ...]
    """The conditions of the theorem, all checked."""
    conditioning: tuple[Conditioning, ...] = ()
    notes: tuple[str, ...] = ()
    """Side effects on the network, one sentence each."""


def make_draft(network: LanguageModel) -> Draft:
    """Return a copy of a network in float64."""
    weights = {
        name: one.detach().cpu().double().clone() for name, one in network.state_dict().items()
    }
    return Draft(network.config, weights)


def block_prefix(index: int) -> str:
    """Return the prefix of a block's parameter names."""
    return f"stack.blocks.{index}."


def choose_blocks(draft: Draft, layer: int | None) -> range:
    """Return the indices of the blocks to change: ``layer``, counted from 1, or all if None."""
    if layer is None:
        return range(draft.blocks)
    if draft.config.shared_blocks:
        raise UsageError(
            f"expected no layer number with shared blocks, got {layer}; all layers change together"
        )
    if not 1 <= layer <= draft.config.num_layers:
        raise UsageError(f"expected a layer from 1 to {draft.config.num_layers}, got {layer}")
    return range(layer - 1, layer)


def replace_layers(
    config: LanguageModelConfig, layers: Mapping[int, AttentionConfig]
) -> LanguageModelConfig:
    """Return the configuration with different attention in some blocks."""
    if config.shared_blocks:
        return dataclasses.replace(config, attention=layers[0])
    every = [layers.get(index, layer) for index, layer in enumerate(config.layers)]
    alike = all(layer == every[0] for layer in every)
    return dataclasses.replace(config, attention=every[0] if alike else tuple(every))


def measure_condition(matrix: Float[Tensor, "rows columns"], name: str) -> Conditioning:
    """Return the condition number of a matrix to invert; refuse a nearly singular matrix."""
    number = float(torch.linalg.cond(matrix))
    # Written so that NaN is refused.
    if not number <= MOST_CONDITION:
        raise UsageError(
            f"expected {name} with a condition number of at most {MOST_CONDITION:.0e}, got "
            f"{number:.1e}; up to this limit, logits stay equal to within 1e-9"
        )
    return Conditioning(name, number)
