"""Ways to store less that no cache here has, yet are called exact: same output, bytes as said.

Decoding is written out in float64: token by token, each method keeping only what it says, against a
layer that keeps rotated keys and values. Layouts that caches have are in ``test_cache_options``.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.blocks import FeedForward, Layer, ProjectedAttention, Storage
from qkvary.arch.labels import parse_variant
from qkvary.arch.models import Encoder, Model
from qkvary.arch.parts import Norm, Table
from qkvary.costs.exact_savings import Method, Saving, find_savings
from qkvary.costs.formats import parse_format

Array = NDArray[np.float64]
FP64 = parse_format("fp64")
TOKENS = 11
GATE = 1e-12


def rotate(x: Array, position: int, channels: int) -> Array:
    """Rotate pairs of the trailing channels of every head by angles that grow with the position."""
    half = channels // 2
    angles = position / 100.0 ** (np.arange(half) / half)
    first, second = x[..., -channels:-half], x[..., -half:]
    turned = (
        first * np.cos(angles) - second * np.sin(angles),
        second * np.cos(angles) + first * np.sin(angles),
    )
    return np.concatenate((x[..., :-channels], *turned), axis=-1)


def softmax(scores: Array) -> Array:
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


class Attention:
    """The weights of one layer, and attention of one token over keys and values that are given."""

    def __init__(
        self, *, d_model: int, heads: int, kv_heads: int, head_dim: int, rotated: int = 0
    ) -> None:
        self.generator = np.random.default_rng(7)
        self.heads, self.kv_heads, self.head_dim, self.rotated = heads, kv_heads, head_dim, rotated
        self.wq = self.draw(d_model, heads * head_dim)
        self.wk, self.wv = (self.draw(d_model, kv_heads * head_dim) for _ in range(2))
        self.bk, self.bv = (self.draw(kv_heads * head_dim) for _ in range(2))
        self.wo = self.draw(heads * head_dim, d_model)
        self.inputs = self.draw(TOKENS, d_model)

    def draw(self, *shape: int) -> Array:
        return self.generator.normal(size=shape) / math.sqrt(shape[0])

    def split(self, flat: Array, heads: int) -> Array:
        return flat.reshape(heads, self.head_dim)

    def turn(self, x: Array, position: int) -> Array:
        return rotate(x, position, self.rotated) if self.rotated else x

    def query(self, x: Array, position: int) -> Array:
        return self.turn(self.split(x @ self.wq, self.heads), position)

    def key(self, x: Array, position: int) -> Array:
        return self.turn(self.split(x @ self.wk + self.bk, self.kv_heads), position)

    def value(self, x: Array) -> Array:
        return self.split(x @ self.wv + self.bv, self.kv_heads)

    def mix(self, query: Array, keys: list[Array], values: list[Array]) -> Array:
        mixed: list[Array] = []
        for head in range(self.heads):
            group = head * self.kv_heads // self.heads
            scores = np.array([query[head] @ key[group] for key in keys]) / math.sqrt(self.head_dim)
            weights = softmax(scores)
            mixed.append(sum(w * v[group] for w, v in zip(weights, values, strict=True)))  # type: ignore[arg-type]
        return np.concatenate(mixed) @ self.wo


def decode_plainly(layer: Attention) -> Iterator[Array]:
    """Keys and values kept."""
    keys: list[Array] = []
    values: list[Array] = []
    for position, x in enumerate(layer.inputs):
        keys.append(layer.key(x, position))
        values.append(layer.value(x))
        yield layer.mix(layer.query(x, position), keys, values)


Step = Callable[[list[Array], Array, int], Array]


def assert_equal_and_as_small(
    layer: Attention,
    keep: Callable[[Array, int], Array],
    step: Step,
    saving: Saving,
    plain: Callable[[Attention], Iterator[Array]] = decode_plainly,
) -> None:
    """Decode from what ``keep`` keeps of each token; count it against what the saving says."""
    kept: list[Array] = []
    for position, (x, expected) in enumerate(zip(layer.inputs, plain(layer), strict=True)):
        kept.append(keep(x, position))
        found = step(kept, x, position)
        assert np.abs(found - expected).max() < GATE * max(1.0, np.abs(expected).max())
    assert saving.model_bytes_then == sum(entry.nbytes for entry in kept)
    assert saving.bytes_now > saving.bytes_then


def make_model(
    label: str,
    *,
    d_model: int,
    heads: int,
    head_dim: int,
    storage: Storage = "needed",
    **position: object,
) -> Model:
    config = AttentionConfig(
        d_model=d_model,
        num_heads=heads,
        head_dim=head_dim,
        causal=True,
        variant=parse_variant(label),
        position=PositionConfig(**position),  # type: ignore[arg-type]
    )
    attention = ProjectedAttention(config=config, storage=storage)
    return model_of(make_layer(attention))


def make_layer(attention: ProjectedAttention, cross: ProjectedAttention | None = None) -> Layer:
    width = attention.config.d_model
    return Layer(
        attention=attention,
        cross=cross,
        feed_forward=(FeedForward(d_model=width, d_ff=5),),
        norms=(Norm(width=width),) * 2,
    )


def model_of(*layers: Layer, encoder: Encoder | None = None) -> Model:
    return Model(
        name="one layer",
        layers=layers,
        vocabulary=3,
        tables=(Table(rows=3, width=layers[0].attention.config.d_model),),  # type: ignore[union-attr]
        encoder=encoder,
    )


def saving_of(model: Model, method: Method, *, context: int = TOKENS) -> Saving:
    report = find_savings(model, context=context, stored_as=FP64)
    return next(saving for saving in report.savings if saving.method == method)


# ---- the layer input in place of keys and values


def test_query_and_output_absorb_the_projections() -> None:
    """Scores q W_K^T x and values (A X) W_V: no key and no value is ever made."""
    layer = Attention(d_model=30, heads=6, kv_heads=6, head_dim=5)
    columns = [slice(5 * head, 5 * head + 5) for head in range(6)]

    def step(kept: list[Array], x: Array, position: int) -> Array:
        stored, query = np.stack(kept), layer.query(x, position)
        mixed: list[Array] = []
        for head, part in enumerate(columns):
            # The key's bias adds one number to all scores, which the softmax does not see.
            weights = softmax(stored @ (layer.wk[:, part] @ query[head]) / math.sqrt(5))
            mixed.append((weights @ stored) @ layer.wv[:, part] + layer.bv[part])
        return np.concatenate(mixed) @ layer.wo

    saving = saving_of(make_model("QKV", d_model=30, heads=6, head_dim=5), "layer input")
    assert (saving.share_of_model, saving.certainty) == (0.5, "exact")
    assert_equal_and_as_small(layer, lambda x, _: x, step, saving)


def test_a_key_that_is_the_input_needs_no_value() -> None:
    """Q-I-V keeps x for the keys already: A (X W_V) = (A X) W_V."""
    layer = Attention(d_model=30, heads=6, kv_heads=6, head_dim=5)

    def plain(layer: Attention) -> Iterator[Array]:
        keys: list[Array] = []
        values: list[Array] = []
        for position, x in enumerate(layer.inputs):
            keys.append(layer.split(x, 6))
            values.append(layer.value(x))
            yield layer.mix(layer.query(x, position), keys, values)

    def step(kept: list[Array], x: Array, position: int) -> Array:
        stored, query = np.stack(kept), layer.query(x, position)
        mixed: list[Array] = []
        for head in range(6):
            part = slice(5 * head, 5 * head + 5)
            weights = softmax(stored[:, part] @ query[head] / math.sqrt(5))
            mixed.append((weights @ stored) @ layer.wv[:, part] + layer.bv[part])
        return np.concatenate(mixed) @ layer.wo

    saving = saving_of(make_model("Q-I-V", d_model=30, heads=6, head_dim=5), "layer input")
    assert (saving.share_of_model, saving.certainty) == (0.5, "exact")
    assert_equal_and_as_small(layer, lambda x, _: x, step, saving, plain)


# ---- what low-rank projections give inside


@pytest.mark.parametrize("absorbed", [False, True])
def test_latents_are_widened_or_absorbed(absorbed: bool) -> None:
    """Scores (q B_K^T) a and values (A a) B_V, or keys and values made of the latents again."""
    layer = Attention(d_model=30, heads=6, kv_heads=6, head_dim=5)
    (ak, bk), (av, bv) = ((layer.draw(30, inner), layer.draw(inner, 30)) for inner in (7, 4))
    layer.wk, layer.wv = ak @ bk, av @ bv

    def widen(kept: list[Array], query: Array) -> Array:
        keys = [layer.split(entry[:7] @ bk + layer.bk, 6) for entry in kept]
        return layer.mix(query, keys, [layer.split(entry[7:] @ bv + layer.bv, 6) for entry in kept])

    def absorb(kept: list[Array], query: Array) -> Array:
        stored, mixed = np.stack(kept), list[Array]()
        for head in range(6):
            part = slice(5 * head, 5 * head + 5)
            weights = softmax(stored[:, :7] @ (bk[:, part] @ query[head]) / math.sqrt(5))
            mixed.append((weights @ stored[:, 7:]) @ bv[:, part] + layer.bv[part])
        return np.concatenate(mixed) @ layer.wo

    def step(kept: list[Array], x: Array, position: int) -> Array:
        return (absorb if absorbed else widen)(kept, layer.query(x, position))

    saving = saving_of(make_model("Q-K[r7]-V[r4]", d_model=30, heads=6, head_dim=5), "latents")
    assert saving.certainty == "exact"
    assert saving.share_of_model == pytest.approx(1 - 11 / 60)
    assert_equal_and_as_small(layer, lambda x, _: np.concatenate((x @ ak, x @ av)), step, saving)


# ---- values made of keys


@pytest.mark.parametrize(("d_model", "rotated"), [(30, 0), (30, 4), (24, 0), (24, 2)])
def test_values_are_made_of_keys(d_model: int, rotated: int) -> None:
    """V = K W_K^-1 W_V with keys before rotation; a wider W_K has an inverse on its image."""
    layer = Attention(d_model=d_model, heads=6, kv_heads=6, head_dim=5, rotated=rotated)
    transfer = np.linalg.pinv(layer.wk) @ layer.wv
    assert np.linalg.cond(layer.wk) < 1e3

    def step(kept: list[Array], x: Array, position: int) -> Array:
        keys = [layer.turn(layer.split(key, 6), index) for index, key in enumerate(kept)]
        values = [layer.split((key - layer.bk) @ transfer + layer.bv, 6) for key in kept]
        return layer.mix(layer.query(x, position), keys, values)

    label = "QKV@rotary" if rotated else "QKV"
    saving = saving_of(make_model(label, d_model=d_model, heads=6, head_dim=5), "keys alone")
    assert (saving.share_of_model, saving.certainty) == (0.5, "needs the weights")
    assert_equal_and_as_small(layer, lambda x, _: x @ layer.wk + layer.bk, step, saving)


# ---- one encoder output for all layers


def test_one_encoder_output_serves_every_cross_attention() -> None:
    layers = [Attention(d_model=30, heads=6, kv_heads=6, head_dim=5) for _ in range(3)]
    for index, layer in enumerate(layers):
        layer.wk, layer.wv = layer.draw(30, 30) * (index + 1), layer.draw(30, 30)
    encoded, x = layers[0].draw(17, 30), layers[0].inputs[0]
    for layer in layers:
        keys, values = (
            [layer.split(row, 6) for row in encoded @ matrix + bias]
            for matrix, bias in ((layer.wk, layer.bk), (layer.wv, layer.bv))
        )
        kept = layer.mix(layer.query(x, 0), keys, values)
        again = layer.mix(
            layer.query(x, 0),
            [layer.key(row, 0) for row in encoded],
            [layer.value(row) for row in encoded],
        )
        assert np.abs(kept - again).max() < GATE
    attention = make_model("QKV", d_model=30, heads=6, head_dim=5).layers[0].attention
    assert isinstance(attention, ProjectedAttention)
    seeing = dataclasses.replace(attention.config, causal=False)
    cross = dataclasses.replace(attention, config=seeing, memory="encoder")
    encoder = Encoder(layers=(make_layer(dataclasses.replace(attention, config=seeing)),))
    model = model_of(*(make_layer(attention, cross),) * 3, encoder=encoder)
    report = find_savings(model, context=TOKENS, stored_as=FP64, encoder_tokens=17)
    saving = next(one for one in report.savings if one.method == "encoder output once")
    own = 3 * TOKENS * 2 * 30 * 8
    assert saving.model_bytes_now == own + 3 * 17 * 2 * 30 * 8
    assert saving.model_bytes_then == own + encoded.nbytes
    assert (saving.layers, saving.certainty) == ((0, 1, 2), "exact")
