"""Records the inputs, scores and gradients of every attention layer on one window of text.

This takes one forward and one backward pass. Other modules compute statistics from the records.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
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
    """The recorded tensors of one layer on one window of text."""

    attention: Attention
    """The layer."""
    input: Float[Tensor, "tokens d_model"]
    """The input of the layer."""
    scores: Scores
    """The query, the key and the score terms from which the softmax is computed."""
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
    """The recorded tensors of all layers, and the loss, on one window of text."""

    layers: list[LayerReading]
    """The layers in the order in which they ran."""
    loss: float
    """The sum of the losses of the text's actual next tokens, in nats."""


def read_window(
    network: LanguageModel, tokens: Int[Tensor, " tokens"], generator: torch.Generator
) -> WindowReading:
    """Run a network on a window of text and return a record of every attention layer.

    The network must be in evaluation mode, :func:`check_layers` must accept its layers, and the
    window must have two tokens or more.

    At each position a token is drawn from the network's own prediction; the sampled loss is the sum
    of the cross entropies of these tokens. The second moment of its derivatives is the Gauss-Newton
    curvature of the loss (the Fisher information). The derivatives for the text's own tokens would
    have another second moment.
    """
    with torch.enable_grad(), _observe(network) as calls:
        logits = network.head(network.features(tokens[None]))[0].float()
        with torch.no_grad():
            loss = F.cross_entropy(logits[:-1], tokens[1:], reduction="sum")
            drawn = torch.multinomial(logits.softmax(dim=-1).cpu(), 1, generator=generator)
        sampled = F.cross_entropy(logits, drawn[:, 0].to(logits.device), reduction="sum")
        shifts = [shift for _, *some in calls for shift in some]
        gradients = torch.autograd.grad(sampled, shifts)
    pairs = zip(gradients[::2], gradients[1::2], strict=True)
    readings = [
        _add_gradients(reading, *pair) for (reading, *_), pair in zip(calls, pairs, strict=True)
    ]
    return WindowReading(layers=readings, loss=float(loss))


def check_layers(network: LanguageModel) -> None:
    """Raise a ``ValueError`` unless each layer has a softmax over products of query and key."""
    for number, layer in enumerate(network.config.layers, start=1):
        variant = layer.variant
        is_plain = variant.core_name == "softmax" and variant.diagonal == "none"
        is_made = variant.decoupled is not None or variant.latent is not None or variant.kv_norm
        if not is_plain or is_made or variant.query_form == "residual-gelu":
            raise ValueError(
                "expected layers with a softmax over products of queries and keys that are "
                f"projections of the layer input, got {format_label(variant)} in layer {number}"
            )


Call = tuple[LayerReading, Tensor, Tensor]
"""The record of a layer without gradients, and the zero tensors that were added to its keys and
values. The gradients are computed with respect to these tensors."""


def _add_gradients(reading: LayerReading, key: Tensor, value: Tensor) -> LayerReading:
    """Return the reading with gradients for the unrotated keys and values."""
    rotation = reading.rotation
    if rotation is not None:
        key = rotation.rotate(key, inverse=True)
        if rotation.value_rope != "none":
            value = rotation.rotate(value, inverse=True)
    return reading._replace(key_gradient=key[0], value_gradient=value[0])


@contextmanager
def _observe(network: LanguageModel) -> Generator[list[Call]]:
    """Record all calls of attention layers in a ``with`` block, also repeated calls of a layer."""
    layers = [block.attention for block in network.stack.blocks]
    calls: list[Call] = []
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
    calls: list[Call],
    x: Float[Tensor, "batch queries d_model"],
    *,
    layout: Layout,
    cache: LayerCache | None = None,
) -> Float[Tensor, "batch queries d_model"]:
    """Attend as ``Attention.forward`` does without a cache, and record the call."""
    del cache
    heads = attention.read(x, layout)
    key_shift = torch.zeros_like(heads.key, requires_grad=True)
    value_shift = torch.zeros_like(heads.value, requires_grad=True)
    # Added before the score terms, because a soft cap already multiplies queries and keys.
    scores = attention.score(heads._replace(key=heads.key + key_shift), layout)
    names = ("query", "key", "products", "gain", "key_bias", "pair_bias")
    found = {name: getattr(scores, name) for name in names}
    detached = {name: one.detach() for name, one in found.items() if isinstance(one, Tensor)}
    key, value, rotation = detached["key"], heads.value.detach(), heads.rotation
    if rotation is not None:
        key = rotation.turn_back(key)
        value = value if rotation.value_rope == "none" else rotation.turn_back(value)
    reading = LayerReading(
        attention=attention,
        input=x.detach()[0],
        scores=replace(scores, **detached),
        rotation=rotation,
        key=key[0],
        value=value[0],
        key_gradient=key_shift[0],
        value_gradient=value_shift[0],
    )
    calls.append((reading, key_shift, value_shift))
    mixed = attention.core(scores, heads.value + value_shift, training=False)
    return attention.output(attention.restore(mixed, heads), x)
