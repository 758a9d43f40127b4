"""The attention core of ``+`` against plain ``Q=K-V`` and against the published construction.

Forward and backward from the heads to the mixed values, without projections; the heads are slices
of one product, as in a network. ``+`` adds one temperature and one bias per key, so that it should
cost little more than plain attention, and far less than m copies of the map of scores.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig, Kernel, PositionConfig
from qkvary.arch.labels import parse_variant
from qkvary.nn.attention import Attention
from qkvary.nn.layout import Layout
from qkvary.nn.terms import Scores
from timing.interleaved import Effort, print_case, read_effort, take_turns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.reference.published_plus import make_table, published_plus_scores

FULL = Effort(rounds=25, turn_seconds=0.05)
QUICK = Effort(rounds=2, turn_seconds=0.0)
MOST_OF_PLAIN = 1.4
LEAST_OF_PUBLISHED = 4.0

Core = Callable[[Tensor, Tensor], Tensor]
"""Heads of the key, which the query shares, and of the value to mixed values."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a case."""

    batch: int
    heads: int
    tokens: int
    head_dim: int
    features: int

    def __str__(self) -> str:
        return (
            f"batch {self.batch}, heads {self.heads}, tokens {self.tokens}, "
            f"head_dim {self.head_dim}, m {self.features}"
        )


SHAPES = (
    Shape(128, 2, 64, 32, 10),
    Shape(32, 2, 128, 32, 10),
    Shape(64, 4, 50, 64, 50),
)


def make_layer(label: str, shape: Shape, kernel: Kernel) -> Attention:
    """Our layer, with small random weights."""
    config = AttentionConfig(
        d_model=shape.heads * shape.head_dim,
        num_heads=shape.heads,
        variant=parse_variant(label),
        kernel=kernel,
        position=PositionConfig(plus_features=shape.features),
    )
    layer = Attention(config)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def core_of(layer: Attention, shape: Shape) -> Core:
    """The core of our layer."""

    def attend(key: Tensor, value: Tensor) -> Tensor:
        layout = Layout(new_tokens=shape.tokens)
        scores = Scores(query=key, key=key, scale=layer.score_scale, layout=layout)
        for term in layer.terms:
            scores = term(scores)
        return layer.core(scores, value, training=layer.training)

    return attend


def published_core(shape: Shape) -> Core:
    """The core as the papers' code computes it; its table is built once."""
    table = make_table(shape.tokens, shape.features)
    weight = (0.3 * torch.randn(1, shape.features)).requires_grad_()
    bias = torch.zeros(1, requires_grad=True)

    def attend(key: Tensor, value: Tensor) -> Tensor:
        scores = key @ key.mT * shape.head_dim**-0.5
        return F.softmax(published_plus_scores(scores, table, weight, bias), dim=-1) @ value

    return attend


def forward_and_backward(core: Core, shape: Shape) -> Callable[[], None]:
    """A call from projected tokens to their gradient."""
    width = shape.heads * shape.head_dim
    projected = torch.randn(shape.batch, shape.tokens, 2 * width, requires_grad=True)
    gradient = torch.randn(shape.batch, shape.tokens, width)

    def call() -> None:
        projected.grad = None
        key, value = (
            part.unflatten(-1, (shape.heads, shape.head_dim)).transpose(1, 2)
            for part in projected.split(width, dim=-1)
        )
        core(key, value).transpose(1, 2).flatten(2).backward(gradient)

    return call


def main() -> None:
    """Measure all shapes; in a quick round the first."""
    effort = read_effort(full=FULL, quick=QUICK)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for shape in SHAPES[:1] if effort == QUICK else SHAPES:
        cores = {
            "plain explicit": core_of(make_layer("Q=K-V", shape, "explicit"), shape),
            "plain sdpa": core_of(make_layer("Q=K-V", shape, "sdpa"), shape),
            "plus": core_of(make_layer("(Q=K-V)+", shape, "auto"), shape),
            "published plus": published_core(shape),
        }
        calls = {name: forward_and_backward(core, shape) for name, core in cores.items()}
        timing = take_turns(calls, effort)
        plain = timing.fastest("plain explicit", "plain sdpa")
        print_case(
            "plus_core",
            f"+ over {plain}: {shape}",
            timing.ratio("plus", plain),
            goal=MOST_OF_PLAIN,
            better="lower",
            timing=timing,
        )
        print_case(
            "plus_core",
            f"published construction over +: {shape}",
            timing.ratio("published plus", "plus"),
            goal=LEAST_OF_PUBLISHED,
            better="higher",
            timing=timing,
        )


if __name__ == "__main__":
    main()
