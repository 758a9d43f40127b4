"""What every attention layer of a network reads and does on one window of text.

One forward and one backward pass. Knows how to look at a layer; does not know what is made of it.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from qkvary.arch.labels import format_label
from qkvary.nn.attention import Attention
from qkvary.nn.cache import LayerCache
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.layout import Layout
from qkvary.nn.positions import Rotation, make_rotation
from qkvary.nn.scores import Scores


class LayerReading(NamedTuple):
    """One layer on one window."""

    input: Float[Tensor, "tokens d_model"]
    """The input of the layer."""
    scores: Scores
    """Query and key as the softmax reads them, and the score terms."""
    rotation: Rotation | None
    """The rotation of query and key."""
    key_gradient: Float[Tensor, "kv_heads tokens head_dim"]
    """The derivative of the sampled loss by the key before its rotation."""
    value_gradient: Float[Tensor, "kv_heads tokens head_dim"]
    """The derivative of the sampled loss by the value before its rotation."""


class WindowReading(NamedTuple):
    """All layers on one window."""

    layers: list[LayerReading]
    """The layers, the first first."""
    loss: float
    """The sum of the losses of the text's own next tokens, in nats."""
    targets: int
    """The number of these tokens."""


def read_window(
    network: LanguageModel, tokens: Int[Tensor, " tokens"], generator: torch.Generator
) -> WindowReading:
    """Run a network on a window of text and return what every attention layer read and did.

    The sampled loss is the sum over all positions of the cross entropy of a token that is drawn
    from the network's own prediction. The second moment of its derivatives is the Gauss-Newton
    curvature of the loss (the Fisher information), which that of the text's tokens is not.

    Args:
        network: A network in evaluation mode whose layers :func:`check_layers` accepts.
        tokens: The window, at least two tokens.
        generator: Draws the tokens of the sampled loss, on the CPU.
    """
    layers = [block.attention for block in network.stack.blocks]
    with torch.enable_grad(), _observe(layers) as views:
        logits = network.head(network.features(tokens[None]))[0].float()
        with torch.no_grad():
            loss = F.cross_entropy(logits[:-1], tokens[1:], reduction="sum")
            drawn = torch.multinomial(logits.softmax(dim=-1).cpu(), 1, generator=generator)
        sampled = F.cross_entropy(logits, drawn[:, 0].to(logits.device), reduction="sum")
        shifts = [shift for view in views for shift in (view.key_shift, view.value_shift)]
        gradients = torch.autograd.grad(sampled, shifts)
    readings = [
        view.describe(key, value)
        for view, key, value in zip(views, gradients[::2], gradients[1::2], strict=True)
    ]
    return WindowReading(layers=readings, loss=float(loss), targets=len(tokens) - 1)


def check_layers(network: LanguageModel) -> None:
    """Refuse layers whose attention is not a softmax of products of query and key.

    Raises:
        ValueError: for such a layer.
    """
    for number, layer in enumerate(network.config.layers, start=1):
        variant = layer.variant
        if variant.core != "softmax":
            raise ValueError(
                f"expected layers with a softmax, got the core {variant.core} in layer {number}"
            )
        if variant.diagonal != "none":
            raise ValueError(
                "expected scores that are products of query and key, got a normalised diagonal "
                f"in layer {number}"
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


class _View:
    """The forward pass of one layer, with a zero added to its keys and values."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.rotation: Rotation | None = None
        # Set by the forward pass.
        self.input = self.key_shift = self.value_shift = torch.empty(0)
        self.scores: Scores | None = None

    def forward(
        self, x: Tensor, *, layout: Layout, cache: LayerCache | None = None
    ) -> Float[Tensor, "batch queries d_model"]:
        """Attend, as ``Attention.forward`` does without a cache."""
        del cache
        attention = self.attention
        scores, value, restore = attention.scores(x, layout)
        self.rotation = make_rotation(attention.config, layout.query_positions, x.dtype)
        self.input, self.scores = x.detach(), scores
        self.key_shift = torch.zeros_like(scores.key, requires_grad=True)
        self.value_shift = torch.zeros_like(value, requires_grad=True)
        scores = replace(scores, key=scores.key + self.key_shift)
        mixed = attention.core(scores, value + self.value_shift, training=False)
        if restore is not None:
            mixed = restore(mixed)
        return attention.o_proj(mixed.transpose(1, 2).flatten(2))

    def describe(self, key_gradient: Tensor, value_gradient: Tensor) -> LayerReading:
        """Return the reading, derivatives turned back to before the rotation."""
        scores, rotation = self.scores, self.rotation
        assert scores is not None, "the layer was not run"  # noqa: S101 - for the type checker
        if rotation is not None:
            key_gradient = rotation.rotate(key_gradient, inverse=True)
            if rotation.value_rope != "none":
                value_gradient = rotation.rotate(value_gradient, inverse=True)
        scores = replace(
            scores,
            query=scores.query.detach(),
            key=scores.key.detach(),
            gain=None if scores.gain is None else scores.gain.detach(),
            key_bias=None if scores.key_bias is None else scores.key_bias.detach(),
            pair_bias=None if scores.pair_bias is None else scores.pair_bias.detach(),
        )
        return LayerReading(
            input=self.input[0],
            scores=scores,
            rotation=rotation,
            key_gradient=key_gradient[0],
            value_gradient=value_gradient[0],
        )


@contextmanager
def _observe(layers: Sequence[Attention]) -> Generator[list[_View]]:
    """Let views run the layers for a while."""
    views = [_View(layer) for layer in layers]
    try:
        for layer, view in zip(layers, views, strict=True):
            layer.forward = view.forward  # pyright: ignore[reportAttributeAccessIssue]
        yield views
    finally:
        for layer in layers:
            del layer.forward
