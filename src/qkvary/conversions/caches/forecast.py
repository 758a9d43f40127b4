"""Forecasts how much a conversion to a smaller cache raises the loss.

A few layers are converted one at a time, and the divergence from the original network is measured
for each. For the other layers, the divergence is assumed to be proportional to the share of the
spectrum of keys and values that the conversion drops. The forecast is the sum over all layers. It
does not include the refit of output projections.

The forecast was compared with the measured increase of the loss after the refit. For stories260K,
the ratio of forecast to increase is 0.9 to 1.2 for an increase of at most 0.5 nats, and 0.5 to 0.7
for a larger one. For a network of ten million parameters, the ratio is 2 to 4.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkvary.arch.networks import LanguageModelConfig
from qkvary.conversions.caches.conversion import embed_windows, load_attention, observe
from qkvary.conversions.caches.divergence import divergence_sum
from qkvary.conversions.caches.layer_maps import Converted, read_layer
from qkvary.nn.attention import make_attention
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.layout import Layout
from qkvary.text.progress_line import Progress, ignore

PROBED = 6
"""Number of layers, spread over the network, that a forecast converts one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast divergence of a conversion, layer by layer."""

    layers: tuple[float, ...]
    """The divergence that the conversion of each layer adds, in nats per token."""
    measured: tuple[bool, ...]
    """Whether the divergence of each layer was measured; otherwise it is estimated from the
    spectrum."""
    lost: tuple[float | None, ...]
    spectra: tuple[Float[Tensor, " numbers"] | None, ...]
    """For each layer, the share of its spectrum that a joint tensor of 0, 1, 2, ... channels drops.
    """
    seconds_per_token: float
    """Seconds per token of text for one pass through the network."""

    @property
    def divergence(self) -> float:
        """The divergence of the network, in nats per token."""
        return sum(self.layers)

    def costs(self, layer: int) -> Float[Tensor, " numbers"]:
        """Return the forecast divergence of a layer for each size of its joint tensor."""
        spectrum, lost = self.spectra[layer], self.lost[layer]
        if spectrum is None or lost is None:
            raise ValueError("expected a method that computes a spectrum, got one that does not")
        return spectrum * (self.layers[layer] / max(lost, 1e-12))


@torch.no_grad()
def forecast(
    network: LanguageModel,
    config: LanguageModelConfig,
    method: ModuleType,
    tokens: Int[Tensor, "windows tokens"],
    *,
    probed: int = PROBED,
    on_progress: Progress = ignore,
) -> Forecast:
    """Forecast the divergence of a conversion by measuring some of the changed layers.

    At most ``probed`` layers are measured.
    """
    begun = time.process_time()
    states = embed_windows(network, tokens)
    layout = Layout(new_tokens=tokens.shape[1], device=states[0].device)
    inputs: list[list[Tensor]] = []
    made: dict[int, Converted] = {}
    layers = range(network.config.num_layers)
    for index, block, new in zip(layers, network.stack.layers, config.layers, strict=True):
        inputs.append([*states])
        moment, _ = observe(block, states, layout)
        if new != block.attention.config:
            made[index] = method.convert(read_layer(block.attention, moment), new)
    seconds = (time.process_time() - begun) / tokens.numel()
    chosen = _choose_layers([*made], probed)
    found: dict[int, float] = {}
    for done, index in enumerate(chosen, start=1):
        block = network.stack.layers[index]
        before = block.attention
        attention = make_attention(config.layers[index]).to(network.embedding).eval()
        load_attention(attention, before, made[index].weights)
        block.attention = attention
        try:
            found[index] = _measure(network, index, inputs[index], states, layout)
        finally:
            block.attention = before
        on_progress(done, len(chosen))
    lost = tuple(made[index].lost if index in made else 0.0 for index in layers)
    per_share = sum(found.values()) / max(sum(lost[index] or 0.0 for index in found), 1e-12)
    mean = sum(found.values()) / max(1, len(found))
    return Forecast(
        layers=tuple(
            found.get(index, mean if share is None else share * per_share)
            for index, share in enumerate(lost)
        ),
        measured=tuple(index in found for index in layers),
        lost=lost,
        spectra=tuple(made[index].spectrum if index in made else None for index in layers),
        seconds_per_token=seconds,
    )


def _choose_layers(candidates: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` layers, evenly spread, including the first and the last."""
    if len(candidates) <= most:
        return list(candidates)
    steps = (len(candidates) - 1) / max(1, most - 1)
    return [candidates[round(number * steps)] for number in range(most)]


def _measure(
    network: LanguageModel,
    first: int,
    inputs: list[Tensor],
    wanted: list[Tensor],
    layout: Layout,
) -> float:
    total = tokens = 0.0
    norm = network.stack.final_norm
    for rows, reference in zip(inputs, wanted, strict=True):
        found = rows
        for block in network.stack.layers[first:]:
            found = block(found, layout=layout)
        states = (one if norm is None else norm(one) for one in (reference, found))
        total += float(divergence_sum(network, network, *states))
        tokens += rows.shape[0] * rows.shape[1]
    return total / tokens
