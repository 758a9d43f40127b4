"""What can be saved with the weights that a model already has: the same function, fewer bytes.

"Exact" means equal in exact arithmetic. What rounding does to it depends on the method and on the
weights, which are not looked at here; each entry says what has to be checked. Compared with engines
as they are, which store rotated keys and values apart, also where one could be made of the other.

Sources: Graef and Wasielewski 2025, "Slim attention"; the K=V layers of Gemma 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from qkvary.arch.blocks import CompressedAttention, LatentAttention, Layer, ProjectedAttention
from qkvary.arch.models import Model
from qkvary.arch.sharing import IDENTITY
from qkvary.costs.cache import layer_cache_bytes, token_bytes
from qkvary.costs.formats import Format
from qkvary.costs.macs import count_encoder_tokens

Certainty = Literal["exact", "needs the weights"]
"""``exact`` by construction, or exact if the weights are conditioned well enough."""
Method = Literal[
    "one tensor for both",
    "value and rotated slice",
    "rotate when read",
    "layer input",
    "keys alone",
    "encoder output once",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """One way to store less, and where it applies."""

    method: Method
    """What is stored instead of keys and values."""
    certainty: Certainty
    """What it changes."""
    layers: tuple[int, ...]
    """Layers that it applies to, from 0."""
    bytes_now: int
    """Cache of one sequence in those layers, as engines store it."""
    bytes_then: int
    """The same with this method."""
    model_bytes_now: int
    """Cache of one sequence in all layers, as engines store it."""
    explanation: str
    """Why it is exact."""
    price: str
    """What it costs at run time, and what has to be checked."""

    @property
    def share_of_layers(self) -> float:
        """What is saved of the cache of those layers."""
        return 1 - self.bytes_then / self.bytes_now

    @property
    def share_of_model(self) -> float:
        """What is saved of the cache of all layers."""
        return (self.bytes_now - self.bytes_then) / self.model_bytes_now

    @property
    def model_bytes_then(self) -> int:
        """Cache of one sequence in all layers, with this method where it applies."""
        return self.model_bytes_now - self.bytes_now + self.bytes_then


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsReport:
    """What can be saved in one model."""

    context: int
    """Tokens of the sequence."""
    engine_bytes: int
    """Its cache as engines store it: rotated keys and values apart."""
    savings: tuple[Saving, ...]
    """The ways to store less, exact ones first."""
    already: tuple[str, ...]
    """What the model saves by its construction already."""
    obstacles: tuple[str, ...]
    """Why other layers have no exact saving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A method in one layer."""

    method: Method
    layer: int
    now: int
    then: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """What is said of a method."""

    certainty: Certainty
    explanation: str
    price: str


_TEXTS: dict[Method, _Text] = {
    "one tensor for both": _Text(
        certainty="exact",
        explanation="key and value are one tensor",
        price="nothing",
    ),
    "value and rotated slice": _Text(
        certainty="exact",
        explanation="the key is the value with a gain and some channels rotated, so that the value "
        "and the rotated channels hold both",
        price="nothing per token that is read; the gain must be applied in float32 before the key "
        "is rounded, or 16-bit keys differ in the last bit",
    ),
    "rotate when read": _Text(
        certainty="exact",
        explanation="the key is the value with a gain and some channels rotated, so that the value "
        "holds both",
        price="every stored key is rotated whenever it is read: 3 operations per rotated channel",
    ),
    "layer input": _Text(
        certainty="exact",
        explanation="keys and values are linear in the layer input, which is narrower than both "
        "together",
        price="keys and values are projected again when read, or absorbed into query and output "
        "where keys are neither rotated nor normalised; stored in an orthonormal basis it is well "
        "conditioned in every format, and what a step costs has to be measured",
    ),
    "keys alone": _Text(
        certainty="needs the weights",
        explanation="the key projection is square or wider, so that V = K W_K^-1 W_V",
        price="needs a well-conditioned W_K: of the 32 layers of a Whisper none stayed below 5 % "
        "error in bf16 or fp16 (published); keys are stored before rotation and norm",
    ),
    "encoder output once": _Text(
        certainty="exact",
        explanation="keys and values of all cross attention are linear in one encoder output",
        price="projected again in every layer and step, or absorbed into query and output",
    ),
}


def find_savings(
    model: Model, *, context: int, stored_as: Format, encoder_tokens: int | None = None
) -> SavingsReport:
    """What can be saved with the weights as they are.

    Args:
        model: Any model that decodes.
        context: Tokens of the sequence.
        stored_as: How the cache stores numbers, before and after.
        encoder_tokens: Tokens of the encoder, where the model does not fix them.
    """
    engine = engine_cache_bytes(
        model, context=context, stored_as=stored_as, encoder_tokens=encoder_tokens
    )
    found: list[_Found] = []
    for index, layer in enumerate(model.layers):
        if isinstance(layer.attention, ProjectedAttention):
            found += _search(layer.attention, index, context, stored_as)
    found += _search_encoder(model, context, stored_as, encoder_tokens)
    methods: dict[Method, None] = {one.method: None for one in found}
    savings = [
        _collect(method, [one for one in found if one.method == method], engine)
        for method in methods
    ]
    savings.sort(key=lambda one: (one.certainty != "exact", -one.share_of_model))
    return SavingsReport(
        context=context,
        engine_bytes=engine,
        savings=tuple(savings),
        already=tuple(dict.fromkeys(_already(model.layers))),
        obstacles=tuple(dict.fromkeys(_obstacles(model.layers))),
    )


def engine_cache_bytes(
    model: Model, *, context: int, stored_as: Format, encoder_tokens: int | None = None
) -> int:
    """Cache of one sequence as engines store it: keys and values apart, also where they are one.

    Latent and compressed attention are stored as they are; so is what reads another layer's cache.
    """
    seen = count_encoder_tokens(model, encoder_tokens, context)
    total = 0
    for layer in model.layers:
        attention = layer.attention
        own = layer_cache_bytes(attention, context=context, stored_as=stored_as)
        total += own if not isinstance(attention, ProjectedAttention) else own * _copies(attention)
        if layer.cross is not None:
            total += seen * token_bytes(layer.cross, stored_as) * _copies(layer.cross)
    return total


def _copies(attention: ProjectedAttention) -> int:
    """How many tensors an engine stores for each that is needed."""
    return 2 if len(attention.config.variant.cached) == 1 else 1


def _search(
    attention: ProjectedAttention, index: int, context: int, stored_as: Format
) -> Iterable[_Found]:
    """The methods that apply to one layer, with its bytes now and then."""
    needed = layer_cache_bytes(attention, context=context, stored_as=stored_as)
    if needed == 0:
        return
    now = needed * _copies(attention)
    config = attention.config
    variant = config.variant
    tokens = needed // token_bytes(attention, stored_as)
    if len(variant.cached) == 1:
        if variant.positions != "rotary" or config.position.value_rope != "none":
            yield _Found(method="one tensor for both", layer=index, now=now, then=needed)
            return
        rotated = stored_as.row_bytes(config.position.rotary_dim(config.size_per_head))
        then = needed + tokens * config.heads(variant.cached[0]) * rotated
        if then < now:
            yield _Found(method="value and rotated slice", layer=index, now=now, then=then)
        yield _Found(method="rotate when read", layer=index, now=now, then=needed)
        return
    input_bytes = tokens * stored_as.row_bytes(config.d_model)
    if IDENTITY in variant.cached or input_bytes < now:
        yield _Found(method="layer input", layer=index, now=now, then=input_bytes)
    key = config.width("k")
    if variant.rank("k") is None and key >= config.d_model and key == config.width("v"):
        yield _Found(method="keys alone", layer=index, now=now, then=now // 2)


def _search_encoder(
    model: Model, context: int, stored_as: Format, encoder_tokens: int | None
) -> Iterable[_Found]:
    seen = count_encoder_tokens(model, encoder_tokens, context)
    crossing = [
        (index, layer.cross) for index, layer in enumerate(model.layers) if layer.cross is not None
    ]
    if not crossing:
        return
    nows = [
        (index, seen * token_bytes(cross, stored_as) * _copies(cross)) for index, cross in crossing
    ]
    once = seen * stored_as.row_bytes(crossing[0][1].config.d_model)
    if once < sum(now for _, now in nows):
        # The first layer pays for the one tensor that all of them read.
        for place, (index, now) in enumerate(nows):
            yield _Found(
                method="encoder output once", layer=index, now=now, then=once if place == 0 else 0
            )


def _collect(method: Method, found: list[_Found], engine: int) -> Saving:
    text = _TEXTS[method]
    return Saving(
        method=method,
        certainty=text.certainty,
        layers=tuple(one.layer for one in found),
        bytes_now=sum(one.now for one in found),
        bytes_then=sum(one.then for one in found),
        model_bytes_now=engine,
        explanation=text.explanation,
        price=text.price,
    )


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
            if attention.compressor:
                yield (
                    f"summaries of {attention.compressor.rate} tokens stand for those beyond the "
                    f"window of {attention.window:,}"
                )
        elif attention.reads_layer is not None:
            yield "some layers read another layer's keys and values and keep none"
        elif attention.config.variant.window is not None:
            yield f"layers with a window keep {attention.config.variant.window - 1:,} tokens"


def _obstacles(layers: Iterable[Layer]) -> Iterable[str]:
    for layer in layers:
        attention = layer.attention
        if not isinstance(attention, ProjectedAttention) or attention.reads_layer is not None:
            continue
        config = attention.config
        if len(config.variant.cached) == 1:
            continue
        stored = sum(config.width(source) for source in config.variant.cached)
        if stored <= config.d_model:
            yield (
                f"keys and values of {stored:,} channels are no wider than the layer input of "
                f"{config.d_model:,}: {config.num_kv_heads} KV heads leave nothing to save exactly"
            )
