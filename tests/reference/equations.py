"""The value of a printed equation in float64: a parser, and each symbol as defined in docs.

Shares no code with ``qkvary``. A value is an array of [heads or 1, rows, columns]; rows are tokens.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_TOKEN = re.compile(
    r"diag-mean|diag-norm|channel-softmax|λ\^\(i-j\)|b\(i-j\)|\|i-j\||\|²|‖₁|R⁻¹|Σⱼ|tanh"
    r"|\d+(?:\.\d+)?(?:e[+-]?\d+)?|[A-Za-z]+[ₕ]?|[τ()\[\]|‖/+;<⊙ᵀᵢⱼ-]"
)


@dataclass(kw_only=True)
class Layer:
    """The numbers of a layer, of one sequence whose tokens are all real."""

    x: Array
    """[tokens, d_model]."""
    heads: int
    kv_heads: int
    weights: Mapping[str, Array]
    """The layer's learned numbers under the names of its state dict."""
    scale: float
    """s."""
    causal: bool
    rotated: int
    """r, the channels that R rotates."""
    base: float = 10_000.0

    @property
    def distance(self) -> NDArray[np.int64]:
        """I - j of every pair."""
        tokens = np.arange(len(self.x))
        return tokens[:, None] - tokens

    @property
    def past(self) -> NDArray[np.bool_]:
        """The pairs that causality leaves."""
        return self.distance >= 0 if self.causal else np.ones_like(self.distance, dtype=bool)


def evaluate(equation: str, layer: Layer) -> Array:
    """Return the mixed values of every head, [heads, tokens, head_dim]."""
    parser = _Parser(equation, layer)
    found = parser.sum()
    parser.expect("")
    return found


def split(equation: str) -> list[str]:
    """Cut an equation into its tokens.

    Raises:
        ValueError: for a character that no token has.
    """
    rest = _TOKEN.sub("", equation).strip()
    if rest:
        raise ValueError(f"expected known symbols, got {rest!r} in {equation!r}")
    return [*_TOKEN.findall(equation), ""]


class _Parser:
    """Sums of terms, terms of factors that are written after one another, from left to right."""

    def __init__(self, equation: str, layer: Layer) -> None:
        self.tokens, self.at, self.layer = split(equation), 0, layer
        self.seen = _find_seen(equation, layer)

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self) -> str:
        return self.tokens[self.at]

    def expect(self, token: str) -> None:
        assert self.take() == token, (token, self.tokens, self.at)

    def sum(self) -> Array:
        sign = -1.0 if self.peek() == "-" and self.take() else 1.0
        total = sign * self.term()
        while self.peek() in {"+", "-"}:
            sign = 1.0 if self.take() == "+" else -1.0
            total = total + sign * self.term()
        return total

    def term(self) -> Array:
        product = self.factor()
        while self.peek() not in {"", "+", "-", ")", "]", "|²", "‖₁", ";", "ⱼ"}:
            if self.peek() == "⊙":
                self.take()
                product = product * self.factor()
            elif self.peek() == "/":
                self.take()
                product = product / self.divisor(product)
            else:
                product = _multiply(product, self.factor())
        return product

    def divisor(self, of: Array) -> Array:
        """A factor, or the sum over the seen tokens j of what follows, or of the dividend."""
        if self.peek() != "Σⱼ":
            return self.factor()
        self.take()
        summed = of if self.peek() == "]" else self.term()
        # As the docs say, so that what sees nothing is divided by something.
        return np.maximum(np.where(self.seen, summed, 0.0).sum(axis=-1, keepdims=True), 1e-6)

    def factor(self) -> Array:
        found = self.atom()
        while self.peek() == "ᵀ":
            self.take()
            found = found.swapaxes(-1, -2)
        return found

    def atom(self) -> Array:
        part = self.take()
        if part == "(":
            return self.inside(")")
        if part == "[":
            return np.where(self.seen, self.inside("]"), 0.0)
        if part == "‖":
            return np.abs(self.inside("‖₁")).sum(axis=-2, keepdims=True)
        if part == "|":
            return self.squared_distance()
        if re.fullmatch(r"[\d.e+-]+", part):
            return np.array(float(part))
        if self.peek() == "(" and part in _FUNCTIONS:
            self.take()
            argument = self.sum()
            while self.peek() != ")":
                # The condition on the pairs, which _find_seen reads.
                self.take()
            self.expect(")")
            return _FUNCTIONS[part](self, argument)
        if part == "x":
            return self.projected()
        return _read_symbol(self.layer, part)

    def inside(self, end: str) -> Array:
        found = self.sum()
        self.expect(end)
        return found

    def projected(self) -> Array:
        """``x Wq``, or ``x Ak Bk`` of a low rank."""
        first, layer = self.take(), self.layer
        name = {"Wqr": "q_rope", "Wkr": "k_rope"}.get(first, first[1:])
        weight = layer.weights[f"{name}_proj.weight"]
        inner = layer.x
        if first.startswith("A"):
            assert self.take() == f"B{name}"
            inner = inner @ layer.weights[f"{name}_proj.down"].T
        flat = inner @ weight.T + layer.weights[f"{name}_proj.bias"]
        return _cut(layer, flat, name)

    def squared_distance(self) -> Array:
        first = self.factor()
        assert (self.take(), self.take()) == ("ᵢ", "-")
        second = self.factor()
        assert (self.take(), self.take()) == ("ⱼ", "|²")
        return ((first[..., :, None, :] - second[..., None, :, :]) ** 2).sum(axis=-1)


def _find_seen(equation: str, layer: Layer) -> NDArray[np.bool_]:
    """The pairs that causality leaves and the condition after the semicolon."""
    seen, (_, _, condition) = layer.past, equation.partition("; ")
    if not condition:
        return seen
    near = np.zeros_like(seen)
    for part in condition.partition(")")[0].split(" or "):
        if window := re.fullmatch(r"\|i-j\| < (\d+)", part):
            near |= np.abs(layer.distance) < int(window[1])
        else:
            stride = re.fullmatch(r"(\d+) divides i-j", part)
            assert stride is not None
            near |= layer.distance % int(stride[1]) == 0
    return seen & near


def _multiply(first: Array, second: Array) -> Array:
    is_scalar = any(one.ndim == 0 or one.shape[-2:] == (1, 1) for one in (first, second))
    return first * second if is_scalar else first @ second


def _cut(layer: Layer, flat: Array, name: str) -> Array:
    """Cut channels into heads, one for each query head; a latent and a rotary key are one head."""
    if name == "k_rope" or (name == "k" and "latent.key.weight" in layer.weights):
        return flat[None]
    size = layer.weights["o_proj.weight"].shape[1] // layer.heads
    size = size if name != "q_rope" else flat.shape[1] // layer.heads
    cut = flat.reshape(len(flat), -1, size).transpose(1, 0, 2)
    return cut.repeat(layer.heads // len(cut), axis=0)


def _read_symbol(layer: Layer, name: str) -> Array:
    heads, weights = np.arange(layer.heads), layer.weights
    own_kv = heads * layer.kv_heads // layer.heads
    if name == "xₕ":
        return _cut(layer, layer.x, "x")
    if name in {"Bk", "Bv"}:
        part = weights[f"latent.{'key' if name == 'Bk' else 'value'}.weight"]
        return part.reshape(layer.kv_heads, -1, part.shape[1]).swapaxes(1, 2)[own_kv]
    if name == "M":
        return weights["query_map"]
    if name == "s":
        return np.array(layer.scale)
    if name == "τ":
        tau = weights["plus.weight"].sum(axis=1) if "plus.weight" in weights else None
        return (weights["key_bias.gain"] if tau is None else tau)[:, None, None]
    if name == "g":
        return _plus_bias(layer, weights["plus.weight"])
    if name == "b":
        table = weights["key_bias.weight"]
        return table[:, np.minimum(np.arange(len(layer.x)), table.shape[1] - 1), None]
    if name == "b(i-j)":
        table = weights["relative.weight"]
        lowest = 0 if layer.causal else -(table.shape[1] // 2)
        index = np.clip(layer.distance, lowest, table.shape[1] - 1 + lowest) - lowest
        return table[:, index]
    if name == "m":
        return (2.0 ** (-8.0 * (heads + 1) / layer.heads))[:, None, None]
    if name == "|i-j|":
        return np.abs(layer.distance).astype(float)
    assert name == "λ^(i-j)", name
    fixed = 1.0 - 2.0 ** (-5.0 - np.arange(layer.kv_heads))
    learned = weights.get("decay.weight")
    factor = fixed if learned is None else 1.0 / (1.0 + np.exp(-learned))
    return np.asarray(factor[own_kv, None, None] ** layer.distance, dtype=np.float64)


def _plus_bias(layer: Layer, weights: Array) -> Array:
    """g: the channels of columns are sines and cosines in turn, after those of rows."""
    features = weights.shape[1]
    rows = min(features, 2 * math.ceil(features / 4))
    bias = np.zeros((len(weights), len(layer.x), 1))
    for channel in range(features - rows):
        angles = np.arange(len(layer.x)) * 10_000.0 ** (-2.0 * (channel // 2) / rows)
        wave = np.cos(angles) if channel % 2 else np.sin(angles)
        bias[:, :, 0] += weights[:, rows + channel, None] * wave
    return bias


def _softmax(parser: _Parser, scores: Array) -> Array:
    exponentials = np.where(parser.seen, np.exp(scores), 0.0)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _exponential(parser: _Parser, scores: Array) -> Array:
    return np.where(parser.seen, np.exp(scores), 0.0)


def _softmax_channels(_: _Parser, channels: Array) -> Array:
    return np.exp(channels) / np.exp(channels).sum(axis=-1, keepdims=True)


def _rotate(parser: _Parser, heads: Array, sign: float = 1.0) -> Array:
    layer, half = parser.layer, parser.layer.rotated // 2
    turned, start = heads.copy(), heads.shape[-1] - 2 * half
    for token in range(heads.shape[-2]):
        for k in range(half):
            angle = sign * token * layer.base ** (-2.0 * k / (2 * half))
            first, second = heads[:, token, start + k], heads[:, token, start + half + k]
            turned[:, token, start + k] = first * math.cos(angle) - second * math.sin(angle)
            turned[:, token, start + half + k] = first * math.sin(angle) + second * math.cos(angle)
    return turned


def _normalise(parser: _Parser, heads: Array) -> Array:
    layer = parser.layer
    repeated = len(heads) // layer.kv_heads if len(heads) > 1 else 1
    alone = heads[::repeated]
    root = np.sqrt((alone**2).mean(axis=(0, 2)) + 1e-6)[None, :, None]
    gain = layer.weights["kv_norm.weight"].reshape(len(alone), 1, -1)
    normed = np.asarray(alone / root * gain, dtype=np.float64)
    return normed.repeat(repeated, axis=0)


def _normalise_heads(parser: _Parser, heads: Array, role: str) -> Array:
    gain = parser.layer.weights[f"{role}_norm.weight"]
    if len(gain) == heads.shape[-1]:
        normed = heads / np.sqrt((heads**2).mean(axis=-1, keepdims=True) + 1e-6) * gain
        return np.asarray(normed, dtype=np.float64)
    repeated = len(heads) * heads.shape[-1] // len(gain)
    alone = heads[::repeated]
    root = np.sqrt((alone**2).mean(axis=(0, 2)) + 1e-6)[None, :, None]
    normed = np.asarray(alone / root * gain.reshape(len(alone), 1, -1), dtype=np.float64)
    return normed.repeat(repeated, axis=0)


def _divide_diagonal(parser: _Parser, scores: Array, by: Callable[[Array], float]) -> Array:
    found = scores.copy()
    for head in range(len(scores)):
        for i in range(scores.shape[-1]):
            own = np.array([scores[head, j, j] for j in range(len(scores[0])) if parser.seen[i, j]])
            found[head, i, i] = scores[head, i, i] / by(own)
    return found


def _gelu(_: _Parser, z: Array) -> Array:
    return z * 0.5 * (1.0 + np.vectorize(math.erf)(z / math.sqrt(2.0)))


_FUNCTIONS: Mapping[str, Callable[[_Parser, Array], Array]] = {
    "softmax": _softmax,
    "exp": _exponential,
    "channel-softmax": _softmax_channels,
    "elu": lambda _, z: np.where(z > 0, z, np.exp(z) - 1.0),
    "relu": lambda _, z: np.where(z > 0, z, 0.0),
    "gelu": _gelu,
    "R": _rotate,
    "R⁻¹": lambda parser, heads: _rotate(parser, heads, -1.0),
    "N": _normalise,
    "Nq": lambda parser, heads: _normalise_heads(parser, heads, "query"),
    "Nk": lambda parser, heads: _normalise_heads(parser, heads, "key"),
    "tanh": lambda _, scores: np.tanh(scores),
    "diag-mean": lambda parser, scores: _divide_diagonal(parser, scores, lambda d: float(d.mean())),
    "diag-norm": lambda parser, scores: _divide_diagonal(
        parser, scores, lambda d: math.sqrt(float((d**2).sum()))
    ),
}
