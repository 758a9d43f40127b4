"""Whole networks as frozen values: encoder, decoder-only language model, vision transformer.

A network has one attention layer for all blocks, or one per block. What it reads is not said here:
networks over tokens are ``TokenNetwork``.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, Self

from qkvary.arch.attention import TORCH_INIT, AttentionConfig, Initialization
from qkvary.arch.canonical import ADDED_LATER, stored
from qkvary.arch.choices import check_choices
from qkvary.arch.variants import Variant

Activation = Literal["relu", "gelu", "swiglu"]
Norm = Literal["layernorm", "rmsnorm"]
NormPlacement = Literal["pre", "pre-only", "post", "post-final", "stream"]
Positions = Literal["none", "learned", "sinusoidal", "sinusoidal-halves"]


@stored("BlockConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """The parts of a block around its attention layer."""

    d_ff: int
    """Inner width of the feed-forward network."""
    activation: Activation = "gelu"
    """Its nonlinearity; ``swiglu`` has a third matrix and no biases."""
    norm: Norm = "layernorm"
    """Kind of normalisation (epsilon 1e-5)."""
    norm_placement: NormPlacement = "pre"
    """``pre``: before each sublayer, and one behind the last block, which ``pre-only`` omits.
    ``post``: after each residual sum; ``post-final`` has one more behind the last block.
    ``stream``: the residual stream itself before each sublayer, and one behind the last block."""
    bias: bool = True
    """Biases in the feed-forward network and in LayerNorm."""
    dropout: float = 0.0
    """Dropout on the output of each sublayer."""
    inner_dropout: float = 0.0
    """Dropout inside the feed-forward network, before its nonlinearity."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.d_ff < 1:
            raise ValueError(f"expected a positive d_ff, got {self.d_ff}")
        for name in ("dropout", "inner_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"expected {name} in [0, 1), got {getattr(self, name)}")

    @property
    def has_final_norm(self) -> bool:
        """Whether one more normalisation follows the last block."""
        return self.norm_placement not in ("pre-only", "post")

    @property
    def has_feed_forward_bias(self) -> bool:
        """SwiGLU networks have none."""
        return self.bias and self.activation != "swiglu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The fields of every network: attention layers and the blocks around them."""

    attention: AttentionConfig | tuple[AttentionConfig, ...]
    """One layer for all, or one per layer."""
    block: BlockConfig
    """The block around each."""
    num_layers: int
    """Blocks."""
    init: Initialization = TORCH_INIT
    """Initialisation of everything but the attention projections."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.num_layers < 1:
            raise ValueError(f"expected positive num_layers, got {self.num_layers}")
        if isinstance(self.attention, tuple):
            if len(self.attention) != self.num_layers:
                raise ValueError(
                    f"expected one attention layer for all or {self.num_layers}, "
                    f"got {len(self.attention)}"
                )
            if len({layer.d_model for layer in self.attention}) != 1:
                raise ValueError("expected attention layers of one d_model")

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

    def with_variant(self, variant: Variant) -> Self:
        """Return the same network with another attention variant in every layer."""
        if isinstance(self.attention, tuple):
            layers = tuple(dataclasses.replace(layer, variant=variant) for layer in self.attention)
            return dataclasses.replace(self, attention=layers)
        return dataclasses.replace(
            self, attention=dataclasses.replace(self.attention, variant=variant)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNetwork(Network):
    """A network over tokens."""

    vocabulary: int
    """Distinct input tokens."""
    max_tokens: int
    """Longest sequence."""

    def __post_init__(self) -> None:
        super(TokenNetwork, self).__post_init__()
        if self.vocabulary < 1 or self.max_tokens < 1:
            raise ValueError(
                "expected positive vocabulary and max_tokens, got "
                f"{self.vocabulary} and {self.max_tokens}"
            )


@stored("EncoderConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(TokenNetwork):
    """The encoder of the synthetic experiments and of set anomaly: one class per token out.

    Source: the public code of paper 2 (Key-Value Transformer), reverse/sort/swap experiments.
    """

    classes: int
    """Classes per token."""
    positions: Positions = "sinusoidal"
    """Absolute positions added to the embedded tokens; sinusoids with sine and cosine interleaved,
    or in two halves."""
    input_dropout: float = 0.0
    """Dropout on the input tokens."""
    reads_vectors: bool = field(default=False, metadata=ADDED_LATER)
    """Whether a token is a vector of ``vocabulary`` numbers, of which an id is the one-hot case."""

    def __post_init__(self) -> None:
        super(EncoderConfig, self).__post_init__()
        if self.classes < 1 or not 0 <= self.input_dropout < 1:
            raise ValueError(
                f"expected positive classes and input dropout in [0, 1), "
                f"got {self.classes} and {self.input_dropout}"
            )


@stored("LanguageModelConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelConfig(TokenNetwork):
    """A decoder-only language model. Rotary, ALiBi and relative positions belong to the variant."""

    positions: Positions = "learned"
    """Absolute positions added to the embedded tokens; sinusoids with sine and cosine interleaved,
    or in two halves."""
    tied_head: bool = True
    """Whether the output head is the embedding."""
    head_bias: bool = False
    """A bias on the output logits."""
    embedding_dropout: float = 0.0
    """Dropout on the sum of embedding and position."""
    scale_embedding: bool = field(default=False, metadata=ADDED_LATER)
    """Whether embedded tokens are multiplied by sqrt(d_model) before positions are added."""

    def __post_init__(self) -> None:
        super(LanguageModelConfig, self).__post_init__()
        if not all(layer.causal for layer in self.layers):
            raise ValueError(
                "expected causal attention in a language model, got a bidirectional layer"
            )


@stored("VisionTransformerConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTransformerConfig(Network):
    """A classifier of images: square patches and a learned class token in, one class out.

    Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"; the public code of paper 2
    (Key-Value Transformer), image classification.
    """

    image_size: int
    """Rows and columns of an image."""
    patch_size: int
    """Rows and columns of a patch; divides ``image_size``."""
    channels: int
    """1 for grey, 3 for red, green and blue."""
    classes: int
    """Distinct labels."""
    d_head: int | None = None
    """Inner width of the head, ``Linear - GELU - Linear``; None for one matrix."""
    input_dropout: float = 0.0
    """Dropout on the sum of patches and positions."""

    def __post_init__(self) -> None:
        super(VisionTransformerConfig, self).__post_init__()
        sizes = ("image_size", "patch_size", "channels", "classes")
        wrong = [name for name in sizes if getattr(self, name) < 1]
        if wrong or (self.d_head is not None and self.d_head < 1):
            names = ", ".join(wrong) or "d_head"
            raise ValueError(f"expected positive {names} of a vision transformer, got {self}")
        if self.image_size % self.patch_size:
            divisors = (n for n in range(2, self.image_size) if not self.image_size % n)
            choices = ", ".join(map(str, divisors)) or str(self.image_size)
            raise ValueError(
                f"expected a patch_size that divides image_size {self.image_size}, got "
                f"{self.patch_size}; choices: {choices}"
            )
        if not 0 <= self.input_dropout < 1:
            raise ValueError(f"expected input_dropout in [0, 1), got {self.input_dropout}")
        if any(layer.causal for layer in self.layers):
            raise ValueError("expected bidirectional attention over patches, got a causal layer")

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def patch_width(self) -> int:
        """Numbers in a patch."""
        return self.channels * self.patch_size**2

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return self.patches + 1
