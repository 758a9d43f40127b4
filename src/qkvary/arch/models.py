"""Descriptions of whole models: everything that adds parameters, arithmetic or memory.

A ``Model`` is made from a network of this package or from the configuration of a published model.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import FeedForward, Layer, ProjectedAttention, share_layer
from qkvary.arch.canonical import not_counted
from qkvary.arch.networks import (
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    Network,
    Positions,
    TokenNetwork,
    VisionTransformerConfig,
)
from qkvary.arch.parts import Linear, Norm, Table, check_sizes
from qkvary.arch.variants import AnyVariant, Variant

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A description of a model, whether or not this package can build the model."""

    name: str
    """Name in tables."""
    layers: tuple[Layer, ...]
    """The blocks; if the model has an encoder, the blocks of the decoder."""
    vocabulary: int
    """Number of distinct output tokens."""
    tables: tuple[Table, ...]
    """Token embeddings."""
    positions: tuple[Table, ...] = ()
    """Learned absolute positions."""
    norms: tuple[Norm, ...] = ()
    """Normalisations outside the blocks."""
    head: tuple[Linear, ...] = ()
    """The matrices from hidden states to logits; a tied matrix is the token embedding."""
    others: tuple[Linear, ...] = ()
    """Matrices that are applied to every token outside the blocks. The head is not included."""
    entries: int = 0
    """Number of further learned parameters outside the blocks."""
    encoder: "Encoder | None" = None
    """The encoder of an encoder-decoder model."""
    max_tokens: int | None = None
    """The longest context that the model is made for; ``None`` if nothing limits it."""
    notes: tuple[str, ...] = ()
    """Caveats about the counted costs, such as parts that are left out."""

    def __post_init__(self) -> None:
        check_sizes(self, "vocabulary")
        if not self.layers:
            raise ValueError("expected at least one layer, got none")

    def count_encoder_tokens(self, given: int | None, context: int) -> int:
        """Return the number of tokens of the encoder; 0 if there is no encoder.

        A fixed number of the model takes precedence over ``given``. The default is ``context``.
        """
        if self.encoder is None:
            return 0
        if given is not None and given < 1:
            raise ValueError(f"expected at least 1 token for the encoder, got {given}")
        return self.encoder.tokens or given or context

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.layers[0].attention.d_model

    @property
    def is_causal(self) -> bool:
        """Whether the model decodes token by token, so that it can use a cache."""
        attentions = [layer.attention for layer, _ in count_kinds(self.layers)]
        projected = [one for one in attentions if isinstance(one, ProjectedAttention)]
        return all(attention.config.causal for attention in projected)

    def with_variant(self, variant: AnyVariant) -> "Model":
        """Return the same model with the sharing of ``variant`` in every attention layer.

        Windows, rotation and the use of other layers' caches stay; cross attention changes too.

        Raises:
            ValueError: if the variant does not fit a layer or the number of layers.
        """
        layers = _share_layers(self.layers, variant)
        if self.encoder is None:
            return replace(self, layers=layers)
        stack = _share_layers(self.encoder.layers, variant)
        return replace(self, layers=layers, encoder=replace(self.encoder, layers=stack))


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """The bidirectional stack of an encoder-decoder."""

    layers: tuple[Layer, ...]
    """The blocks."""
    norms: tuple[Norm, ...] = ()
    """Normalisations outside the blocks."""
    tokens: int | None = None
    """Number of tokens that the encoder always sees; ``None`` if it depends on the input."""
    stem: tuple[Linear, ...] = ()
    """The matrices that turn the input into tokens; their costs are per token that they make."""
    positions: tuple[Table, ...] = ()
    """Absolute positions, learned or stored."""


def _share_layers(layers: tuple[Layer, ...], variant: AnyVariant) -> tuple[Layer, ...]:
    if isinstance(variant, Variant):
        return tuple(map_layers(layers, lambda layer: share_layer(layer, variant)))
    # Equal layers are one object, which counting relies on.
    made: dict[tuple[int, Variant], Layer] = {}
    pairs = [*zip(layers, variant.for_layers(len(layers)), strict=True)]
    for layer, own in pairs:
        if (id(layer), own) not in made:
            made[id(layer), own] = share_layer(layer, own)
    return tuple(made[id(layer), own] for layer, own in pairs)


def map_layers(layers: Sequence[Given], make: Callable[[Given], Made]) -> list[Made]:
    """Return ``make(layer)`` for each layer, computed once for a layer that occurs repeatedly."""
    numbers = [*map(id, layers)]
    found = dict(zip(numbers, layers, strict=True))
    made = {number: make(layer) for number, layer in found.items()}
    return [*map(made.__getitem__, numbers)]


def count_kinds(layers: Sequence[Layer]) -> list[tuple[Layer, int]]:
    """Return each distinct layer with the number of its occurrences.

    Layers are compared by identity, because comparing thousands of layers by value would be slow.
    """
    numbers = [*map(id, layers)]
    found = dict(zip(numbers, layers, strict=True))
    return [(found[number], count) for number, count in Counter(numbers).items()]


def as_model(network: Network, name: str = "network") -> Model:
    """Return a network of this package as a ``Model``, from which all costs are derived.

    Anything that a subclass adds to a network class in ``DESCRIPTIONS`` is not counted.
    """
    known = next((kind for kind in type(network).__mro__ if kind in DESCRIPTIONS), None)
    if known is None:
        choices = ", ".join(kind.__name__ for kind in DESCRIPTIONS)
        raise ValueError(f"expected one of {choices} or a subclass, got {type(network).__name__}")
    notes = tuple(f"not counted: {part}" for part in not_counted(network))
    return replace(DESCRIPTIONS[known](network), name=name, notes=notes)


def block_layers(network: Network) -> tuple[Layer, ...]:
    """Return the blocks of a network, leaving out any cross attention."""
    norms, block = block_norms(network), network.block
    bias = block.has_feed_forward_bias
    dense = FeedForward(network.d_model, block.d_ff, gated=block.is_gated, bias=bias)

    def build(config: AttentionConfig) -> Layer:
        attention = ProjectedAttention(config=config)
        return Layer(attention=attention, feed_forward=(dense,), norms=norms * block.norms)

    first, *others = map_layers(network.layers, build)
    if network.shared_blocks:
        others = [replace(first, has_own_weights=False)] * len(others)
    return (first, *others)


def block_norms(network: Network) -> tuple[Norm, ...]:
    """Return one of the equal normalisations of a block, as a tuple of length 1.

    The tuple is empty if the network's blocks have no normalisation.
    """
    kind = network.block.norm
    norm = Norm(network.d_model, bias=kind == "layernorm" and network.block.bias)
    return () if kind == "none" else (norm,)


def final_norms(network: Network) -> tuple[Norm, ...]:
    """Return the normalisation after the last block as a tuple, empty if there is none."""
    return block_norms(network) if network.block.has_final_norm else ()


def _describe_encoder(network: EncoderConfig) -> Model:
    d_model, vectors, pooled = network.d_model, network.reads_vectors, network.pooling != "none"
    table = Table(network.vocabulary, d_model, bias=True)
    matrix = Linear(network.vocabulary, d_model, bias=True)
    return Model(
        name="encoder",
        layers=block_layers(network),
        vocabulary=network.classes,
        tables=() if vectors else (table,),
        others=(matrix,) if vectors else (),
        positions=_position_tables(network, network.positions),
        # The head has its own LayerNorm, whatever norm the blocks have.
        norms=(*final_norms(network), Norm(d_model, bias=True)),
        head=(
            Linear(d_model, d_model, bias=True, is_pooled=pooled),
            Linear(d_model, network.classes, bias=True, is_pooled=pooled),
        ),
        max_tokens=network.max_tokens,
    )


def _describe_language_model(network: LanguageModelConfig) -> Model:
    d_model, vocabulary = network.d_model, network.vocabulary
    tied, bias = network.tied_head, network.head_bias
    return Model(
        name="language model",
        layers=block_layers(network),
        vocabulary=vocabulary,
        tables=(Table(vocabulary, d_model),),
        positions=_position_tables(network, network.positions),
        norms=final_norms(network),
        head=(Linear(d_model, vocabulary, bias=bias, tied=tied),),
        max_tokens=network.max_tokens,
    )


def _describe_vision_transformer(network: VisionTransformerConfig) -> Model:
    d_model, inner = network.d_model, network.d_head
    widths = (d_model, network.classes) if inner is None else (d_model, inner, network.classes)
    return Model(
        name="vision transformer",
        layers=block_layers(network),
        vocabulary=network.classes,
        tables=(Table(1, d_model),),
        positions=(Table(network.tokens, d_model),),
        norms=final_norms(network),
        others=(Linear(network.patch_width, d_model, bias=True, skipped_tokens=1),),
        head=tuple(
            Linear(into, out, bias=True, is_pooled=True) for into, out in itertools.pairwise(widths)
        ),
        max_tokens=network.tokens,
    )


def _describe_encoder_decoder(network: EncoderDecoderConfig) -> Model:
    d_model, vocabulary, norms = network.d_model, network.vocabulary, block_norms(network)
    positions = _position_tables(network, network.positions)
    layers = tuple(
        replace(layer, cross=ProjectedAttention(config=cross), norms=(*layer.norms, *norms))
        for layer, cross in zip(block_layers(network), network.cross, strict=True)
    )
    return Model(
        name="encoder-decoder",
        layers=layers,
        vocabulary=vocabulary,
        tables=tuple(Table(rows, d_model) for rows in (network.source_vocabulary, vocabulary)),
        positions=positions,
        norms=final_norms(network),
        head=(Linear(d_model, vocabulary, bias=network.head_bias),),
        encoder=Encoder(
            layers=block_layers(network.encoder), norms=final_norms(network), positions=positions
        ),
        max_tokens=network.max_tokens,
    )


def _position_tables(network: TokenNetwork, positions: Positions) -> tuple[Table, ...]:
    learned = positions == "learned"
    return (Table(network.max_tokens, network.d_model),) if learned else ()


DESCRIPTIONS: dict[type[Network], Callable[[Any], Model]] = {
    EncoderConfig: _describe_encoder,
    LanguageModelConfig: _describe_language_model,
    VisionTransformerConfig: _describe_vision_transformer,
    EncoderDecoderConfig: _describe_encoder_decoder,
}
"""The function that describes each kind of network as a model."""
