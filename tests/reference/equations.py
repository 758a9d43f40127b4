"""The value of a printed equation in float64: its text as Python, with symbols as the docs say.

A value has the dimensions [heads or 1, rows, columns]; rows are tokens.
"""

import math
import re
from functools import partialmethod
from typing import Any

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from tests.reference.attention import Weights, gelu, head_size, normalise_diagonal, project
from tests.reference.positions import rotate, sinusoid

_REWRITES = (
    # The condition on the pairs, which find_seen reads.
    (r"; [^()]*\)", ")"),
    (r"x A(\w) B\1", r"source_\1"),
    (r"x W(\w+)", r"source_\1"),
    (r"xₕ", "source_x"),
    (r"\|i-j\|", "gap"),
    (r"b\(i-j\)", "relative"),
    (r"λ\^\(i-j\)", "decays"),
    (r"‖(.*?)‖₁", r"sums(\1)"),
    (r"\|([^|]*?)ᵢ - ([^|]*?)ⱼ\|²", r"squares(\1, \2)"),
    (r"\[(.*?) / Σⱼ\]", r"divide(\1, None)"),
    (r"\[(.*?) / Σⱼ (.*?)\]", r"divide(\1, \2)"),
    (r"\[(.*?)\]", r"show(\1)"),
    (r"(diag|channel)-(\w+)", r"\1_\2"),
    (r"R⁻¹", "back"),
    (r"\bR\(", "turn("),
    (r"\bN([qk]?)\(", r"norm_\1("),
    (r"⊙", "*"),
    (r"τ", "temperature"),
    (r"(?<![\w.])(\d[\w.]*)", r"number(\1)"),
    (r"ᵀ", ".mT"),
    # What is written after one another is multiplied, from left to right, as what is divided.
    (r"(?<=[\w)]) (?=[\w(])", " @ "),
)


class Value(Tensor):
    """A tensor whose products with numbers are no products of matrices."""

    def __matmul__(self, other: Any) -> Any:
        is_number = any(one.ndim == 0 or one.shape[-2:] == (1, 1) for one in (self, other))
        return self * other if is_number else torch.matmul(self, other)


def evaluate(
    equation: str, config: AttentionConfig, weights: Weights, x: Tensor, scale: float
) -> Tensor:
    """Return the mixed values of every head, [heads, tokens, head_dim]; ``scale`` is s."""
    text = equation
    for pattern, replacement in _REWRITES:
        text = re.sub(pattern, replacement, text)
    symbols = _Symbols(config, weights, x, scale, find_seen(equation, config, len(x)))
    names = set(re.findall(r"[^\W\d]\w*", text)) - {"mT", "None"}
    # The text is that of our own docs, and a parser for it would be a second reading of them.
    found = eval(text, {}, {name: symbols.find(name) for name in names})  # noqa: S307
    return found.as_subclass(Tensor)


def find_seen(equation: str, config: AttentionConfig, tokens: int) -> Tensor:
    """The pairs that causality leaves and the condition after the semicolon."""
    places = torch.arange(tokens)
    distance = places[:, None] - places
    seen = distance >= 0 if config.causal else torch.ones_like(distance).bool()
    _, _, condition = equation.partition("; ")
    if not condition:
        return seen
    near = torch.zeros_like(seen)
    for part in condition.partition(")")[0].split(" or "):
        if window := re.fullmatch(r"\|i-j\| < (\d+)", part):
            near |= distance.abs() < int(window[1])
        else:
            stride = re.fullmatch(r"(\d+) divides i-j", part)
            assert stride is not None
            near |= distance % int(stride[1]) == 0
    return seen & near


class _Symbols:
    """What each symbol stands for: heads of one token after another, numbers, functions."""

    def __init__(
        self, config: AttentionConfig, weights: Weights, x: Tensor, scale: float, seen: Tensor
    ) -> None:
        self.config, self.weights, self.x, self.seen = config, weights, x, seen
        self.heads, self.size = torch.arange(config.num_heads), head_size(config)
        self.own_kv = self.heads * config.num_kv_heads // config.num_heads
        places = torch.arange(len(x))
        self.distance = places[:, None] - places
        self.s = torch.tensor(scale, dtype=x.dtype)
        self.gap = self.distance.abs().double()

    def find(self, name: str) -> Any:
        """The value or the function of a name."""
        found = getattr(self, name, None)
        found = self.read(name.removeprefix("source_")) if found is None else found
        return found.as_subclass(Value) if isinstance(found, Tensor) else found

    def read(self, name: str) -> Tensor:
        """The layer input as a role or through a projection, one head for each query head."""
        stored = {"qr": "q_rope", "kr": "k_rope"}.get(name, name)
        flat = self.x if name == "x" else project(self.weights, f"{stored}_proj", self.x)
        if name == "kr" or (name == "k" and "latent.key.weight" in self.weights):
            # One head for all.
            return flat[None]
        width = self.size if name != "qr" else flat.shape[1] // len(self.heads)
        cut = torch.stack(flat.split(width, dim=-1))
        return cut.repeat_interleave(len(self.heads) // len(cut), dim=0)

    def expand(self, role: str) -> Tensor:
        part = self.weights[f"latent.{role}.weight"]
        return part.view(self.config.num_kv_heads, -1, part.shape[1]).mT[self.own_kv]

    Bk = property(lambda self: self.expand("key"))
    Bv = property(lambda self: self.expand("value"))
    M = property(lambda self: self.weights["query_map"])

    @property
    def m(self) -> Tensor:
        return (2.0 ** (-8.0 * (self.heads.double() + 1.0) / len(self.heads)))[:, None, None]

    @property
    def g(self) -> Tensor:
        """The channels of columns are sines and cosines in turn, after those of rows."""
        maps = self.weights["plus.weight"]
        rows = min(maps.shape[1], 2 * math.ceil(maps.shape[1] / 4))
        waves = [sinusoid(place, rows)[: maps.shape[1] - rows] for place in range(len(self.x))]
        return (maps[:, rows:] @ torch.tensor(waves, dtype=self.x.dtype).T)[:, :, None]

    @property
    def b(self) -> Tensor:
        table = self.weights["key_bias.weight"]
        return table[:, torch.arange(len(self.x)).clamp(max=table.shape[1] - 1), None]

    @property
    def relative(self) -> Tensor:
        table = self.weights["relative.weight"]
        lowest = 0 if self.config.causal else -(table.shape[1] // 2)
        return table[:, self.distance.clamp(lowest, table.shape[1] - 1 + lowest) - lowest]

    @property
    def temperature(self) -> Tensor:
        has_plus = "plus.weight" in self.weights
        gain = self.weights["plus.weight" if has_plus else "key_bias.gain"]
        return (gain.sum(dim=1) if has_plus else gain)[:, None, None]

    @property
    def decays(self) -> Tensor:
        learned = self.weights.get("decay.weight")
        fixed = 1.0 - 2.0 ** (-5.0 - torch.arange(self.config.num_kv_heads).double())
        factor = fixed if learned is None else 1.0 / (1.0 + torch.exp(-learned))
        return factor[self.own_kv, None, None] ** self.distance

    def number(self, value: float) -> Tensor:
        return torch.tensor(float(value), dtype=self.x.dtype).as_subclass(Value)

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(~self.seen, -math.inf).softmax(dim=-1)

    def exp(self, scores: Tensor) -> Tensor:
        return torch.exp(scores) * self.seen

    def show(self, scores: Tensor) -> Tensor:
        return scores * self.seen

    def divide(self, scores: Tensor, summed: Tensor | None) -> Tensor:
        """As the docs say, so that what sees nothing is divided by something."""
        total = ((scores if summed is None else summed) * self.seen).sum(dim=-1, keepdim=True)
        return scores * self.seen / total.clamp(min=1e-6)

    def channel_softmax(self, z: Tensor) -> Tensor:
        return torch.exp(z) / torch.exp(z).sum(dim=-1, keepdim=True)

    def elu(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, z, torch.exp(z) - 1.0)

    def relu(self, z: Tensor) -> Tensor:
        return torch.where(z > 0, z, 0.0)

    gelu = staticmethod(gelu)
    tanh = staticmethod(torch.tanh)

    def turn(self, part: Tensor, back: bool = False) -> Tensor:
        dim = self.config.variant.decoupled or 2 * int(self.size / 4)
        return rotate(part, range(len(self.x)), dim=dim, base=10_000.0, back=back)

    def back(self, part: Tensor) -> Tensor:
        return self.turn(part, back=True)

    def normalise(self, part: Tensor, name: str) -> Tensor:
        """Over a head where the gain has its size, else over all; repeated heads change no mean."""
        gain = self.weights[f"{name}_norm.weight"]
        is_wide = name == "kv" or len(gain) != part.shape[-1]
        gains = gain.view(-1, 1, part.shape[-1])
        means = part.square().mean(dim=(0, 2) if is_wide else 2, keepdim=True)
        gains = gains.repeat_interleave(len(part) // len(gains), dim=0)
        return part / (means + 1e-6).sqrt() * gains

    norm_ = partialmethod(normalise, name="kv")
    norm_q = partialmethod(normalise, name="query")
    norm_k = partialmethod(normalise, name="key")

    def diag_mean(self, scores: Tensor) -> Tensor:
        return normalise_diagonal(scores, self.seen, 1.0, "mean")

    def diag_norm(self, scores: Tensor) -> Tensor:
        return normalise_diagonal(scores, self.seen, 1.0, "norm")

    def sums(self, part: Tensor) -> Tensor:
        return part.abs().sum(dim=-2, keepdim=True)

    def squares(self, one: Tensor, other: Tensor) -> Tensor:
        return (one[:, :, None] - other[:, None]).square().sum(dim=-1)
