"""Observes the inputs, scores and gradients of every attention layer on one window of text.

One forward and one backward pass. Knows how to observe a layer; does not know what the observations
are used for.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from qkvary.arch.labels import format_label
from qkvary.nn.attention import Attention
from qkvary.nn.cache import LayerCache
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.layout import Layout, Rotation
from qkvary.nn.terms import Scores


class LayerReading(NamedTuple):
    """One layer on one window."""

    attention: Attention
    """The layer."""
    input: Float[Tensor, "tokens d_model"]
    """The input of the layer."""
    scores: Scores
    """Query and key as the softmax reads them, and the score terms."""
    rotation: Rotation | None
    """The rotation of query and key."""
    key: Float[Tensor, "kv_heads tokens head_dim"]
    """The key before rotation; normalised if the layer has a norm of keys."""
    value: Float[Tensor, "kv_heads tokens head_dim"]
    """The value before rotation."""
    key_gradient: Float[Tensor, "kv_heads tokens head_dim"]
    """The derivative of the sampled loss with respect to ``key``."""
    value_gradient: Float[Tensor, "kv_heads tokens head_dim"]
    """The derivative of the sampled loss with respect to ``value``."""


class WindowReading(NamedTuple):
    """All layers on one window."""

    layers: list[LayerReading]
    """The layers in the order in which they ran."""
    loss: float
    """The sum of the losses of the text's actual next tokens, in nats."""
    targets: int
    """The number of these tokens."""


def read_window(
    network: LanguageModel, tokens: Int[Tensor, " tokens"], generator: torch.Generator
) -> WindowReading:
    """Run a network on a window of text and return what every attention layer read and did.

    At each position a token is drawn from the network's own prediction; the sampled loss is the sum
    of the cross entropies of these tokens. The second moment of its derivatives is the Gauss-Newton
    curvature of the loss (the Fisher information); the derivatives for the text's own tokens would
    not give it.

    Args:
        network: A network in evaluation mode whose layers :func:`check_layers` accepts.
        tokens: The window, at least two tokens.
        generator: Draws the tokens of the sampled loss, on the CPU.
    """
    with torch.enable_grad(), _observe(network) as calls:
        logits = network.head(network.features(tokens[None]))[0].float()
        with torch.no_grad():
            loss = F.cross_entropy(logits[:-1], tokens[1:], reduction="sum")
            drawn = torch.multinomial(logits.softmax(dim=-1).cpu(), 1, generator=generator)
        sampled = F.cross_entropy(logits, drawn[:, 0].to(logits.device), reduction="sum")
        shifts = [shift for call in calls for shift in (call.key_shift, call.value_shift)]
        gradients = torch.autograd.grad(sampled, shifts)
    readings = [
        call.describe(key, value)
        for call, key, value in zip(calls, gradients[::2], gradients[1::2], strict=True)
    ]
    return WindowReading(layers=readings, loss=float(loss), targets=len(tokens) - 1)


def check_layers(network: LanguageModel) -> None:
    """Refuse layers whose scores are not functions of products of query and key.

    Raises:
        ValueError: for such a layer.
    """
    for number, layer in enumerate(network.config.layers, start=1):
        variant = layer.variant
        if variant.core_name != "softmax":
            raise ValueError(
                f"expected layers with a softmax, got the core {variant.core_name} in layer "
                f"{number}"
            )
        if variant.diagonal != "none":
            raise ValueError(
                "expected scores that are products of query and key, got a normalised diagonal in "
                f"layer {number}"
            )
        if variant.decoupled is not None or variant.latent is not None or variant.kv_norm:
            raise ValueError(
                "expected keys and values that are projections of the layer input, got "
                f"{format_label(variant)} in layer {number}"
            )
        if variant.query_form == "residual-gelu":
            raise ValueError(
                f"expected queries that are linear in the layer input, got {variant.query_form} "
                f"in layer {number}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of a layer, with zeros added to its keys and values to obtain their derivatives."""

    attention: Attention
    input: Tensor
    scores: Scores
    rotation: Rotation | None
    value: Tensor
    key_shift: Tensor
    value_shift: Tensor

    def describe(self, key_gradient: Tensor, value_gradient: Tensor) -> LayerReading:
        """Return the reading, with derivatives rotated back to the basis before rotation."""
        scores, rotation = self.scores, self.rotation
        names = ("query", "key", "products", "gain", "key_bias", "pair_bias")
        detached = {
            name: value.detach()
            for name in names
            if isinstance(value := getattr(scores, name), Tensor)
        }
        key, value = detached["key"], self.value
        if rotation is not None:
            key, key_gradient = rotation.turn_back(key), rotation.rotate(key_gradient, inverse=True)
            if rotation.value_rope != "none":
                value = rotation.turn_back(value)
                value_gradient = rotation.rotate(value_gradient, inverse=True)
        return LayerReading(
            attention=self.attention,
            input=self.input[0],
            scores=replace(scores, **detached),
            rotation=rotation,
            key=key[0],
            value=value[0],
            key_gradient=key_gradient[0],
            value_gradient=value_gradient[0],
        )


@contextmanager
def _observe(network: LanguageModel) -> Generator[list[_Call]]:
    """Record the calls of all layers within a block. A layer may be called several times."""
    layers = [block.attention for block in network.stack.blocks]
    calls: list[_Call] = []
    try:
        for layer in layers:
            # Shadows the method of the class until the attribute is deleted.
            layer.forward = partial(_attend, layer, calls)  # pyright: ignore[reportAttributeAccessIssue]
        yield calls
    finally:
        for layer in layers:
            del layer.forward


def _attend(
    attention: Attention,
    calls: list[_Call],
    x: Float[Tensor, "batch queries d_model"],
    *,
    layout: Layout,
    cache: LayerCache | None = None,
    kernel: str | None = None,
) -> Float[Tensor, "batch queries d_model"]:
    """Attend as ``Attention.forward`` does without a cache, and record it."""
    del cache, kernel
    heads = attention.read(x, layout)
    shifts = [torch.zeros_like(one, requires_grad=True) for one in (heads.key, heads.value)]
    # Added before the score terms, because a soft cap already multiplies queries and keys.
    scores = attention.score(heads._replace(key=heads.key + shifts[0]), layout)
    call = _Call(
        attention=attention,
        input=x.detach(),
        scores=scores,
        rotation=heads.rotation,
        value=heads.value.detach(),
        key_shift=shifts[0],
        value_shift=shifts[1],
    )
    calls.append(call)
    mixed = attention.core(scores, heads.value + call.value_shift, training=False)
    return attention.output(attention.restore(mixed, heads), x)
