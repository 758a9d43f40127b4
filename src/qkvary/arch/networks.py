"""Configurations of networks: encoder, language model, encoder-decoder, vision transformer.

Configurations are immutable. A network has one attention configuration for all blocks, or one for
each block.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from qkvary.arch.attention import TORCH_INIT, AttentionConfig, Initialization
from qkvary.arch.canonical import ADDED_LATER, import_code, stored
from qkvary.arch.labels import format_label
from qkvary.arch.parts import check_choices, check_rates, check_sizes, check_word
from qkvary.arch.variants import QKV, AnyVariant, Variant, join_layers

Activation = Literal["relu", "gelu", "gelu-tanh", "swiglu", "geglu-tanh"]
Norm = Literal["layernorm", "rmsnorm", "rmsnorm-plus-one", "none"]
NormPlacement = Literal["pre", "pre-only", "post", "post-final", "stream", "output", "sandwich"]
Skips = Literal["both", "attention", "feed-forward", "none"]
Positions = Literal["none", "learned", "sinusoidal", "sinusoidal-halves"]
"""Absolute positions. In ``sinusoidal``, sine and cosine alternate. In ``sinusoidal-halves``, all
sines come first."""
Pooling = Literal["none", "mean"]


@stored("BlockConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """Describes the parts of a block other than its attention layer."""

    d_ff: int
    """Inner width of the feed-forward network."""
    activation: Activation = "gelu"
    """The activation. ``gelu-tanh`` is GPT-2's approximation of GELU. ``swiglu`` and ``geglu-tanh``
    are gated: the network has a third matrix and no biases."""
    norm: Norm = "layernorm"
    """The normalisation of the whole stack. ``none``: no normalisation. ``rmsnorm-plus-one``: an
    RMSNorm that multiplies by one plus its learned weights."""
    norm_placement: NormPlacement = "pre"
    """The tensors that are normalised.

    - ``pre``: the input of each sublayer, and the output of the last block.
    - ``pre-only``: the input of each sublayer.
    - ``post``: each residual sum.
    - ``post-final``: each residual sum, and once more the output of the last block.
    - ``stream``: the residual stream itself before each sublayer and after the last block.
    - ``output``: the output of each sublayer, before the residual sum.
    - ``sandwich``: the input and the output of each sublayer, and the output of the last block.
    """
    bias: bool = True
    """Whether the feed-forward network and LayerNorm have biases."""
    dropout: float = 0.0
    """Dropout on the output of each sublayer."""
    feed_forward_dropout: float | None = field(default=None, metadata=ADDED_LATER)
    """Dropout on the output of the feed-forward network; ``None`` for the value of ``dropout``."""
    inner_dropout: float = 0.0
    """Dropout inside the feed-forward network, before its nonlinearity."""
    norm_eps: float = field(default=1e-5, metadata=ADDED_LATER)
    """Epsilon of the normalisations around the sublayers and after the last block."""
    skips: Skips = field(default="both", metadata=ADDED_LATER)
    """Which sublayers have a skip connection (their input is added to their output)."""
    parallel: bool = field(default=False, metadata=ADDED_LATER)
    """Whether attention and feed-forward network read the same input."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.parallel and (self.norm_placement != "pre" or self.skips != "both"):
            raise ValueError(
                "expected the norm placement pre and both skips for parallel sublayers, got "
                f"{self.norm_placement} and {self.skips}"
            )
        if self.norm == "none" and self.norm_placement != "pre":
            raise ValueError(
                f"expected the norm placement pre if norm is none, got {self.norm_placement}"
            )
        if not 0 < self.norm_eps < 1:
            raise ValueError(f"expected norm_eps above 0 and below 1, got {self.norm_eps}")
        check_sizes(self, "d_ff")
        check_rates(self, "dropout", "inner_dropout", "feed_forward_dropout")

    @property
    def has_final_norm(self) -> bool:
        """Whether there is a normalisation after the last block."""
        return self.norm != "none" and self.norm_placement not in ("pre-only", "post")

    @property
    def has_attention_skip(self) -> bool:
        """Whether the input of attention is added to its output."""
        return self.skips in ("both", "attention")

    @property
    def has_feed_forward_skip(self) -> bool:
        """Whether the input of the feed-forward network is added to its output."""
        return self.skips in ("both", "feed-forward")

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward network has a third matrix, the gate."""
        return self.activation in ("swiglu", "geglu-tanh")

    @property
    def has_feed_forward_bias(self) -> bool:
        """Whether the feed-forward network has biases; gated ones have none."""
        return self.bias and not self.is_gated

    @property
    def norms(self) -> int:
        """Number of normalisations of a block."""
        return 0 if self.norm == "none" else 4 if self.norm_placement == "sandwich" else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The base of every network: its attention layers and the blocks around them."""

    attention: AttentionConfig | tuple[AttentionConfig, ...]
    """The attention of all layers, or one configuration per layer."""
    block: BlockConfig
    """The block around each attention layer."""
    num_layers: int
    """Number of blocks."""
    init: Initialization = TORCH_INIT
    """Initialisation of all weights except the attention projections."""
    shared_blocks: bool = field(default=False, metadata=ADDED_LATER)
    """Whether all layers are one block with one set of weights (Lan et al. 2020, "ALBERT")."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(self, "num_layers")
        if isinstance(self.attention, tuple):
            if len(self.attention) != self.num_layers:
                raise ValueError(
                    "expected one attention configuration for all layers, or one for each of the "
                    f"{self.num_layers} layers, got {len(self.attention)}"
                )
            if len({layer.d_model for layer in self.attention}) != 1:
                raise ValueError("expected attention layers that all have the same d_model")
            if self.shared_blocks:
                raise ValueError(
                    "expected one attention configuration for shared blocks, got several"
                )

    @property
    def layers(self) -> tuple[AttentionConfig, ...]:
        """One attention configuration per layer."""
        if isinstance(self.attention, tuple):
            return self.attention
        return (self.attention,) * self.num_layers

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.layers[0].d_model

    @property
    def variant(self) -> AnyVariant:
        """The variant of all layers, or the variant of each layer."""
        return join_layers([layer.variant for layer in self.layers])

    def with_variant(self, variant: AnyVariant) -> Self:
        """Return the same network with another attention variant in every layer.

        Raises:
            ValueError: if the variant does not fit the network or the number of layers.
        """
        if isinstance(variant, Variant) and isinstance(self.attention, AttentionConfig):
            shared = replace(self.attention, variant=variant)
            return replace(self, attention=shared)
        pairs = zip(self.layers, variant.for_layers(self.num_layers), strict=True)
        layers = tuple(replace(layer, variant=own) for layer, own in pairs)
        return replace(self, attention=layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNetwork(Network):
    """A network that reads token ids."""

    vocabulary: int
    """Number of distinct input tokens."""
    max_tokens: int
    """Maximum number of tokens."""

    def __post_init__(self) -> None:
        super(TokenNetwork, self).__post_init__()
        check_sizes(self, "vocabulary", "max_tokens")


@stored("EncoderConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(TokenNetwork):
    """The encoder of the synthetic and set-anomaly tasks.

    The encoder predicts one class per token or per sequence.

    Source: the public code of paper 2 (Borji 2023), reverse/sort/swap experiments.
    """

    classes: int
    """Number of classes per token, or per sequence with pooling."""
    positions: Positions = "sinusoidal"
    """Absolute positions that are added to the embedded tokens."""
    input_dropout: float = 0.0
    """Dropout on the input tokens."""
    reads_vectors: bool = field(default=False, metadata=ADDED_LATER)
    """Whether tokens are vectors of ``vocabulary`` numbers; a token id equals a one-hot vector."""
    pooling: Pooling = field(default="none", metadata=ADDED_LATER)
    """What the head reads: every token, or the mean of the hidden states of real tokens."""

    def __post_init__(self) -> None:
        super(EncoderConfig, self).__post_init__()
        check_sizes(self, "classes")
        check_rates(self, "input_dropout")


@stored("LanguageModelConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelConfig(TokenNetwork):
    """A decoder-only language model.

    Rotary, ALiBi and relative positions are options of the attention variant.
    """

    positions: Positions = "learned"
    """Absolute positions that are added to the embedded tokens."""
    tied_head: bool = True
    """Whether the output head uses the weights of the embedding."""
    head_bias: bool = False
    """Whether the output head has a bias."""
    embedding_dropout: float = 0.0
    """Dropout on the sum of embedding and position."""
    scale_embedding: bool = field(default=False, metadata=ADDED_LATER)
    """Whether embedded tokens are multiplied by sqrt(d_model) before positions are added."""
    logit_cap: float | None = field(default=None, metadata=ADDED_LATER)
    """The soft cap c: logits become c tanh(logit / c). ``None`` for no cap."""

    def __post_init__(self) -> None:
        super(LanguageModelConfig, self).__post_init__()
        if self.logit_cap is not None and not 0 < self.logit_cap < math.inf:
            raise ValueError(f"expected a positive and finite logit cap, got {self.logit_cap}")
        if not all(layer.causal for layer in self.layers):
            raise ValueError(
                "expected causal layers in a language model, got a bidirectional layer"
            )


@stored("VisionTransformerConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTransformerConfig(Network):
    """An image classifier that reads square patches and a learned class token.

    Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"; the public code of paper 2
    (Key-Value Transformer), image classification.
    """

    image_size: int
    """Height and width of an image in pixels."""
    patch_size: int
    """Height and width of a patch in pixels; divides ``image_size``."""
    channels: int
    """1 for grey, 3 for red, green and blue."""
    classes: int
    """Number of labels."""
    d_head: int | None = None
    """Inner width of a head ``Linear - GELU - Linear``; None for a head of one matrix."""
    input_dropout: float = 0.0
    """Dropout on the sum of patches and positions."""

    def __post_init__(self) -> None:
        super(VisionTransformerConfig, self).__post_init__()
        check_sizes(self, "image_size", "patch_size", "channels", "classes", "d_head")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"expected a patch_size that divides image_size {self.image_size}, got "
                f"{self.patch_size}"
            )
        check_rates(self, "input_dropout")
        if any(layer.causal for layer in self.layers):
            raise ValueError(
                "expected bidirectional layers in a vision transformer, got a causal layer"
            )

    @property
    def patch_width(self) -> int:
        """Number of values in a patch."""
        return self.channels * self.patch_size**2

    @property
    def tokens(self) -> int:
        """Number of tokens: the patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossSharing:
    """A rule that derives the cross attention of a layer from its self-attention."""

    variant: Callable[[Variant], Variant]
    """Returns the variant of cross attention for a variant of self-attention."""
    make: Callable[[AttentionConfig, AttentionConfig], Any] | None = None
    """Makes the layer of cross attention from the configurations of self-attention and of cross
    attention; ``None`` for the usual layer."""


CROSS_SHARINGS = {
    "none": CrossSharing(variant=lambda _: QKV),
    "same": CrossSharing(variant=lambda own: own),
}
"""The kinds of cross attention; ``papers.cross_sharings`` adds those of published code."""


@stored("EncoderDecoderConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderConfig(TokenNetwork):
    """An encoder, and a decoder of equal depth that attends to the encoder's output.

    ``attention`` and ``vocabulary`` describe the decoder. The encoder is not causal.

    Source: Vaswani et al. 2017; the public code of paper 2 (Key-Value Transformer), translation.
    """

    source_vocabulary: int
    """Number of distinct input tokens of the encoder."""
    padding: int = 1
    """The token id that pads shorter sequences of a batch, in source and target."""
    cross_sharing: str = "none"
    """The variant of cross attention, as a key of ``CROSS_SHARINGS``. ``none``: QKV. ``same``: the
    variant of self-attention."""
    positions: Positions = "sinusoidal"
    """Absolute positions that are added to the embedded tokens of both stacks."""
    scale_embedding: bool = True
    """Whether embedded tokens are multiplied by sqrt(d_model) before positions are added."""
    embedding_dropout: float = 0.0
    """Dropout on the sum of embedding and position."""
    head_bias: bool = True
    """Whether the output head has a bias."""

    def __post_init__(self) -> None:
        super(EncoderDecoderConfig, self).__post_init__()
        if not all(layer.causal for layer in self.layers):
            raise ValueError("expected causal layers in a decoder, got a bidirectional layer")
        check_sizes(self, "source_vocabulary")
        check_rates(self, "embedding_dropout")
        if not 0 <= self.padding < min(self.vocabulary, self.source_vocabulary):
            raise ValueError(
                f"expected a padding token in both vocabularies, got {self.padding} for sizes "
                f"{self.source_vocabulary} and {self.vocabulary}"
            )
        block = self.block
        if (block.norm_placement, block.skips, block.parallel) != ("pre", "both", False):
            raise ValueError(
                "expected the norm placement pre, both skips and sequential sublayers in an "
                f"encoder-decoder, got {block.norm_placement}, {block.skips} and "
                f"parallel={block.parallel}"
            )
        if block.norm == "none" or self.shared_blocks:
            raise ValueError(
                "expected a norm and no shared blocks in an encoder-decoder, got norm "
                f"{block.norm} and shared_blocks={self.shared_blocks}"
            )
        if any(layer.variant.decay != "none" for layer in self.layers):
            raise ValueError("expected an encoder-decoder without a decay, got a decay")
        for layer in self.cross:
            own = layer.variant
            order = (own.keeps_state, own.window, own.stride, own.diagonal)
            if order != (False, None, None, "none"):
                raise ValueError(
                    "expected no linear core, window, stride or diagonal normalisation in cross "
                    f"attention, got {format_label(own)}; set cross_sharing to none"
                )

    @property
    def encoder(self) -> Network:
        """The encoder's stack."""
        layers = tuple(replace(layer, causal=False) for layer in self.layers)
        return Network(
            attention=layers, block=self.block, num_layers=self.num_layers, init=self.init
        )

    @property
    def cross(self) -> tuple[AttentionConfig, ...]:
        """The cross attention of each decoder layer."""
        vary = self.cross_kind.variant
        return tuple(
            replace(layer, causal=False, variant=vary(layer.variant)) for layer in self.layers
        )

    @property
    def cross_kind(self) -> CrossSharing:
        """The rule for cross attention that ``cross_sharing`` names."""
        if self.cross_sharing not in CROSS_SHARINGS:
            import_code(["qkvary.papers.cross_sharings"])
        check_word("cross_sharing", self.cross_sharing, tuple(CROSS_SHARINGS))
        return CROSS_SHARINGS[self.cross_sharing]
