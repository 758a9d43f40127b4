"""Finds exact savings: ways to cache fewer bytes with the same weights and the same outputs.

"Exact" means equal in exact arithmetic. Rounding depends on the method and on the weights, but
the weights are not read here. Each saving states what to check.

Source: the K=V layers of Gemma 4.
"""

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from qkvary.arch.blocks import (
    CompressedAttention,
    LatentAttention,
    Layer,
    ProjectedAttention,
    RecurrentLayer,
    Storage,
)
from qkvary.arch.models import Model, count_kinds, map_layers
from qkvary.arch.sharing import IDENTITY
from qkvary.costs.cache import layerwise_cache_bytes, model_cache_bytes
from qkvary.costs.formats import Format, parse_format

Method = Literal[
    "one tensor for both",
    "value and rotated slice",
    "rotate when read",
    "layer input",
    "latents",
]

LOSSY_FORMATS = ("fp8", "int8", "int4")
"""Lower-bit formats for a cache, as an alternative that is not exact."""
LONG = 2**16
"""Length in tokens of the long sequence for which :func:`apply_savings` compares caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """An exact method to shrink the cache, and the layers that it applies to."""

    method: Method
    """What the cache stores instead of keys and values."""
    layers: tuple[int, ...]
    """The layers that the method applies to, counted from 0."""
    bytes_now: int
    """Bytes of one sequence's cache in these layers without the method."""
    bytes_then: int
    """Bytes of one sequence's cache in these layers with the method."""
    model_bytes_now: int
    """Bytes of one sequence's cache in all layers without the method."""
    explanation: str
    """Why the method is exact."""
    price: str
    """The cost at run time, and the conditions to check."""

    @property
    def share_of_layers(self) -> float:
        """The share of the cache in ``layers`` that the method saves."""
        return 1 - self.bytes_then / self.bytes_now

    @property
    def share_of_model(self) -> float:
        """The share of the whole model's cache that the method saves."""
        return (self.bytes_now - self.bytes_then) / self.model_bytes_now

    @property
    def model_bytes_then(self) -> int:
        """Bytes of one sequence's cache in all layers, if the method is used where it applies."""
        return self.model_bytes_now - self.bytes_now + self.bytes_then


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsReport:
    """The exact savings of one model."""

    context: int
    """Tokens per sequence."""
    bytes_now: int
    """Bytes of one sequence's cache without any of these savings."""
    savings: tuple[Saving, ...]
    """The methods that store less; the smallest cache comes first."""
    already: tuple[str, ...]
    """Savings that the model already has by construction."""
    obstacles: tuple[str, ...]
    """Reasons why other layers have no exact saving."""
    lossy: tuple[tuple[str, int], ...]
    """Bytes of the cache in each lower-bit format. Such a format changes the outputs."""


_EXPLANATIONS: dict[Method, str] = {
    "one tensor for both": "key and value are one tensor",
    "value and rotated slice": (
        "the key is the value times a gain, with some channels rotated, so the value and the "
        "rotated channels are enough to recover the key"
    ),
    "rotate when read": (
        "the key is the value times a gain, with some channels rotated, so the value is enough to "
        "recover the key"
    ),
    "layer input": (
        "keys and values are linear in the layer input, and the layer input has fewer channels "
        "than keys and values have together"
    ),
    "latents": (
        "keys and values are linear in the inner channels of a low-rank projection, which are "
        "fewer than its output channels"
    ),
}
_PRICES: dict[Method, str] = {
    "one tensor for both": "this saving costs nothing",
    "value and rotated slice": (
        "reading a cached token costs no extra work; the gain must be applied in float32 before "
        "the key is rounded, or 16-bit keys differ in the last bit"
    ),
    "rotate when read": (
        "every stored key is rotated whenever it is read, which takes 3 operations per rotated "
        "channel"
    ),
    "layer input": (
        "each read computes keys and values again from the stored layer input; if keys have no "
        "rotation and no norm, the query and output projections can absorb the key and value "
        "projections; in an orthonormal basis, the layer input is well conditioned in every number "
        "format; the time of a step must be measured"
    ),
    "latents": (
        "each read multiplies by the second matrices of the low-rank projections again; if keys "
        "have no rotation and no norm, the query and output projections can absorb these matrices"
    ),
}


def find_savings(
    model: Model,
    *,
    context: int,
    stored_as: Format,
    encoder_tokens: int | None = None,
) -> SavingsReport:
    """Return the exact savings that are possible without changing the weights.

    Counts the peak size of the cache up to ``context`` tokens, because memory has to hold it.
    """

    def count(one: Model, form: Format = stored_as) -> Sequence[int]:
        return layerwise_cache_bytes(
            one, context=context, stored_as=form, encoder_tokens=encoder_tokens, peak=True
        )

    now = count(model)
    savings: list[Saving] = []
    for method, explanation in _EXPLANATIONS.items():
        changed = apply_saving(model, method)
        if changed is None:
            continue
        then = count(changed)
        if sum(then) >= sum(now):
            continue
        pairs = enumerate(zip(model.layers, changed.layers, strict=True))
        layers = tuple(place for place, (one, other) in pairs if one is not other and now[place])
        savings.append(
            Saving(
                method=method,
                layers=layers,
                bytes_now=sum(now[place] for place in layers),
                bytes_then=sum(then[place] for place in layers),
                model_bytes_now=sum(now),
                explanation=explanation,
                price=_PRICES[method],
            )
        )
    savings.sort(key=lambda one: -one.share_of_model)
    kinds = [layer for layer, _ in count_kinds(model.layers)]
    return SavingsReport(
        context=context,
        bytes_now=sum(now),
        savings=tuple(savings),
        already=tuple(dict.fromkeys(_already(kinds))),
        obstacles=tuple(dict.fromkeys(_obstacles(kinds))),
        lossy=tuple((name, sum(count(model, parse_format(name)))) for name in LOSSY_FORMATS),
    )


def apply_savings(model: Model) -> dict[Method, Model]:
    """Return the methods that shrink the cache of a long sequence, each with the changed model."""
    methods: tuple[Method, ...] = get_args(Method)
    changed: dict[Method, Model | None] = {
        method: apply_saving(model, method) for method in methods
    }
    now = model_cache_bytes(model, context=LONG, encoder_tokens=LONG)
    return {
        method: less
        for method, less in changed.items()
        if less is not None and model_cache_bytes(less, context=LONG, encoder_tokens=LONG) < now
    }


def apply_saving(model: Model, method: Method) -> Model | None:
    """Return the model with a method applied where it fits, or ``None`` if it fits nowhere."""
    changed = map_layers(model.layers, lambda layer: _store_less(layer, method))
    if all(map(operator.is_, model.layers, changed)):
        return None
    followed = map_layers(changed, lambda layer: _follow(layer, changed))
    return dataclasses.replace(model, layers=tuple(followed))


def _follow(layer: Layer, layers: Sequence[Layer]) -> Layer:
    """Return the layer. If it reads another layer's entries, it gets the storage of that layer."""
    attention = layer.attention
    if not isinstance(attention, ProjectedAttention) or attention.reads_layer is None:
        return layer
    read = layers[attention.reads_layer].attention
    if not isinstance(read, ProjectedAttention) or read.storage == attention.storage:
        return layer
    own = dataclasses.replace(attention, storage=read.storage)
    return dataclasses.replace(layer, attention=own)


def _store_less(layer: Layer, method: Method) -> Layer:
    attention = layer.attention
    if not isinstance(attention, ProjectedAttention) or attention.reads_layer is not None:
        return layer
    storage = _storage(attention, method)
    if storage is None or storage == attention.storage:
        return layer
    return dataclasses.replace(layer, attention=dataclasses.replace(attention, storage=storage))


def _storage(attention: ProjectedAttention, method: Method) -> Storage | None:
    """Return the storage that a method gives a layer; ``None`` if the method does not apply."""
    config, variant = attention.config, attention.config.variant
    cached = variant.sharing.cached
    if method == "layer input":
        # The width of a rotary key that all heads share does not count.
        stored = sum(config.width(source) for source in cached)
        mixed = IDENTITY in variant.cached and len(cached) == 2
        return "input" if mixed or stored > config.d_model else None
    if method == "latents":
        narrow = any(config.latent(source) is not None for source in variant.cached)
        return "latent" if narrow else None
    if len(cached) != 1:
        return None
    if variant.positions != "rotary" or config.position.value_rope != "none":
        return "needed" if method == "one tensor for both" else None
    if method == "rotate when read":
        return "needed"
    is_partial = config.rotated_channels < config.size_per_head
    return "value and slice" if method == "value and rotated slice" and is_partial else None


def _already(layers: Iterable[Layer]) -> Iterable[str]:
    for layer in layers:
        attention = layer.attention
        if isinstance(attention, LatentAttention):
            full = attention.num_heads * (attention.key_dim + attention.value_dim)
            yield (
                f"latent attention keeps {attention.stored_width:,} channels of a token instead of "
                f"{full:,}"
            )
        elif isinstance(attention, CompressedAttention):
            yield "shared-KV attention with one head keeps one tensor for keys and values"
        elif isinstance(attention, RecurrentLayer):
            if attention.sums or attention.recent:
                numbers = attention.sums + attention.recent
                yield f"layers with a {attention.kind} keep a state of {numbers:,} numbers each"
        elif attention.reads_layer is not None:
            yield "some layers read another layer's keys and values, and keep none of their own"
        elif attention.config.variant.keeps_state:
            numbers = attention.config.state_numbers
            yield f"layers of linear attention keep a state of {numbers:,} numbers each"
        elif attention.config.variant.reach is not None:
            yield f"layers with a window keep {attention.config.variant.reach - 1:,} tokens"


def _obstacles(layers: Iterable[Layer]) -> Iterable[str]:
    for layer in layers:
        attention = layer.attention
        if not isinstance(attention, ProjectedAttention) or attention.reads_layer is not None:
            continue
        config = attention.config
        if len(config.variant.sharing.cached) == 1:
            continue
        stored = sum(config.width(source) for source in config.variant.cached)
        narrow = any(config.latent(source) is not None for source in config.variant.cached)
        if stored <= config.d_model and not narrow:
            yield (
                f"with {config.num_kv_heads} KV heads, keys and values together have {stored:,} "
                f"channels, no more than the {config.d_model:,} channels of the layer input, so no "
                "exact saving is possible"
            )
