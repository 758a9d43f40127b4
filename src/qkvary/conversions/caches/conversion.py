"""Converts a network layer by layer, on the activations of the layers already converted.

Two sets of hidden states pass through the layers in parallel. One set passes through the given
network, whose attention outputs are the targets. The other passes through the new network, whose
layers are fitted to the targets. No other activations are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.structure import check_structure, make_language_model
from qkvary.conversions.caches.divergence import ROWS
from qkvary.conversions.caches.forms import check_layers
from qkvary.conversions.caches.layer_maps import read_layer
from qkvary.conversions.draft import replace_layers
from qkvary.nn.attention import Attention
from qkvary.nn.blocks import Block
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.layout import Layout
from qkvary.text.progress_line import Progress, ignore

RIDGE = 0.02
"""Weight of the penalty in a :class:`Regression`, relative to the mean square of the inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOutcome:
    """The result of converting a layer."""

    lost: float | None
    """The share of the spectrum of keys and values that the converted layer drops; None for methods
    without a spectrum."""
    error: float
    """The error of attention's output before the refit, relative to the output. Both are measured
    as root mean squares."""
    refitted_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A converted network."""

    one_shot: LanguageModel
    """The network before the refit: each layer is computed from the given weights and the moments
    of its input."""
    refitted: LanguageModel
    """The network after the refit. Its output projections are fitted to the attention outputs of
    the original."""
    layers: tuple[LayerOutcome, ...]


def choose_network(
    config: LanguageModelConfig, method: ModuleType, numbers: Sequence[int | None]
) -> LanguageModelConfig:
    """Return the configuration of the network that a method makes.

    ``numbers`` says how many numbers per token each layer may cache; None leaves a layer unchanged.
    """
    check_layers(config)
    chosen = {
        index: method.choose(layer, size)
        for index, (layer, size) in enumerate(zip(config.layers, numbers, strict=True))
        if size is not None
    }
    return replace_layers(config, chosen)


@torch.no_grad()
def convert_network(
    network: LanguageModel,
    config: LanguageModelConfig,
    method: ModuleType,
    tokens: Int[Tensor, "windows tokens"],
    *,
    on_progress: Progress = ignore,
) -> Conversion:
    """Convert a copy of a network to ``config``; return the copy before and after the refit."""
    check_structure(network)
    one_shot, refitted = (_copy_parts(network, config) for _ in range(2))
    wanted, found = (embed_windows(network, tokens) for _ in range(2))
    layout = Layout(new_tokens=tokens.shape[1], device=wanted[0].device)
    outcomes: list[LayerOutcome] = []
    blocks = zip(network.stack.layers, one_shot.stack.layers, refitted.stack.layers, strict=True)
    for index, (before, plain, after) in enumerate(blocks, start=1):
        moment, targets = observe(before, wanted, layout)
        if after.attention.config == before.attention.config:
            for made in (plain, after):
                made.attention.load_state_dict(before.attention.state_dict())
            outcomes.append(LayerOutcome(lost=None, error=0.0, refitted_error=0.0))
        else:
            maps = read_layer(before.attention, moment)
            made = method.convert(maps, after.attention.config)
            for attention in (plain.attention, after.attention):
                load_attention(attention, before.attention, made.weights)
            error, refitted_error = _refit(after, found, targets, layout)
            outcomes.append(
                LayerOutcome(lost=made.lost, error=error, refitted_error=refitted_error)
            )
        for batch in range(len(found)):
            found[batch] = after(found[batch], layout=layout)
        on_progress(index, network.config.num_layers)
    return Conversion(one_shot=one_shot, refitted=refitted, layers=tuple(outcomes))


def load_attention(made: Attention, before: Attention, weights: dict[str, Tensor]) -> None:
    """Load ``weights`` into ``made``, and copy the other parameters from ``before``."""
    kept = {name: value for name, value in before.state_dict().items() if name in made.state_dict()}
    made.load_state_dict({**kept, **weights})


def _copy_parts(network: LanguageModel, config: LanguageModelConfig) -> LanguageModel:
    made = make_language_model(config).to(network.embedding.device, network.embedding.dtype).eval()
    others = {
        name: value for name, value in network.state_dict().items() if ".attention." not in name
    }
    made.load_state_dict({**made.state_dict(), **others}, assign=True)
    return made


def embed_windows(
    network: LanguageModel, tokens: Int[Tensor, "windows tokens"]
) -> list[Float[Tensor, "rows tokens d_model"]]:
    """Return the inputs of the first block, a few windows per tensor."""
    device = network.embedding.device
    layout = Layout(new_tokens=tokens.shape[1], device=device)
    return [network.embed(rows, layout) for rows in tokens.to(device).split(ROWS)]


def observe(
    block: Block, states: list[Tensor], layout: Layout
) -> tuple[Float[Tensor, "inputs inputs"], list[Tensor]]:
    """Replace the states by a block's outputs; return a moment and the outputs of its attention.

    The moment is the second moment of the inputs of attention, with an appended 1.
    """
    outputs: list[Tensor] = []
    moment = torch.zeros((), dtype=torch.float64)

    def keep(_module: object, inputs: tuple[Tensor, ...], output: Any) -> None:
        nonlocal moment
        rows = torch.nn.functional.pad(_widen(inputs[0]), (0, 1), value=1.0)
        moment = moment + (rows.T @ rows).cpu()
        outputs.append(cast("Tensor", output))

    watched = block.attention.register_forward_hook(keep)
    try:
        for batch in range(len(states)):
            states[batch] = block(states[batch], layout=layout)
    finally:
        watched.remove()
    return moment / sum(one.shape[0] * one.shape[1] for one in outputs), outputs


def _widen(read: Float[Tensor, "rows tokens channels"]) -> Float[Tensor, "inputs channels"]:
    """Return the inputs of all tokens in float64. On a device without float64, use the CPU."""
    rows = read.flatten(0, 1)
    return (rows.cpu() if rows.device.type == "mps" else rows).double()


class Regression:
    """A ridge regression ``y ~ z W`` that penalises the distance of W from a prior.

    Only sums over tokens are kept, not the tokens themselves.
    """

    def __init__(self, prior: Float[Tensor, "inputs outputs"]) -> None:
        self.prior = prior.double().clone()
        size = len(prior)
        self._square = torch.zeros(size, size, dtype=torch.float64)
        self._product = torch.zeros(prior.shape, dtype=torch.float64)
        self._energy = 0.0

    def add(
        self, inputs: Float[Tensor, "tokens inputs"], wanted: Float[Tensor, "tokens outputs"]
    ) -> None:
        """Add the inputs and targets of some tokens, in float64 on any device."""
        self._square += (inputs.T @ inputs).cpu()
        self._product += (inputs.T @ wanted).cpu()
        self._energy += float(wanted.square().sum())

    def solve(self) -> Float[Tensor, "inputs outputs"]:
        """Return the solution W."""
        damped = self._square.clone()
        damped.diagonal().add_(RIDGE * damped.diagonal().mean())
        # Inputs that are always zero determine no weight.
        damped.diagonal().clamp_(min=torch.finfo(damped.dtype).tiny)
        return self.prior + torch.linalg.solve(damped, self._product - self._square @ self.prior)

    def error(self, weight: Float[Tensor, "inputs outputs"]) -> float:
        """Return the squared error of ``weight``, divided by the sum of squares of the targets."""
        explained = (weight * (2 * self._product - self._square @ weight)).sum()
        return (self._energy - float(explained)) / max(self._energy, 1e-300)


def _refit(
    block: Block, states: list[Tensor], targets: list[Tensor], layout: Layout
) -> tuple[float, float]:
    """Fit the output projection; return the relative errors before and after."""
    attention = block.attention
    out = attention.o_proj
    regression = Regression(out.weight.cpu().T)
    for state, target in zip(states, targets, strict=True):
        heads = attention.read(block.attention_input(state), layout)
        mixed = attention.core(attention.score(heads, layout), heads.value, training=False)
        mixed = attention.restore(mixed, heads).transpose(1, 2).flatten(2)
        bias = cast("Tensor | None", out.bias)
        wanted = target if bias is None else target - bias
        regression.add(_widen(mixed), _widen(wanted))
    fitted = regression.solve()
    before, after = (regression.error(one) for one in (regression.prior, fitted))
    out.weight.copy_(fitted.T)
    return max(before, 0.0) ** 0.5, max(after, 0.0) ** 0.5
