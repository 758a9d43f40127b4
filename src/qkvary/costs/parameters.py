"""Parameters by part, derived from a configuration.

Does not know ``nn``: the two are independent readings of one specification, and a contract test
holds them equal.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, EncoderConfig, LanguageModelConfig, NetworkConfig
from qkvary.arch.sharing import Source


class Size(NamedTuple):
    """Numbers of a part, matrices and offsets apart."""

    weights: int
    """Entries of matrices, tables and gains."""
    biases: int = 0
    """Entries of biases."""

    @property
    def total(self) -> int:
        """Both together."""
        return self.weights + self.biases


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Learned numbers of a network by part."""

    embedding: int
    """The token embedding, with the bias of the encoder's."""
    positions: int
    """Learned absolute positions. Position terms of the scores are counted under ``attention``."""
    attention: int
    """Input and output projections, query maps, ``+`` maps and relative biases of all layers."""
    feed_forward: int
    """The feed-forward networks of all layers."""
    norms: int
    """Gains and biases of every normalisation, the one of the output included."""
    head: int
    """What makes logits of features; nothing where it is the embedding."""
    biases: int
    """How many of all these are biases."""

    @property
    def total(self) -> int:
        """All of them, each once."""
        parts = (self.embedding, self.positions, self.attention, self.feed_forward)
        return sum(parts) + self.norms + self.head

    @property
    def weights(self) -> int:
        """Everything that is not a bias."""
        return self.total - self.biases

    def to_dict(self) -> dict[str, int]:
        """The parts, their total, and the same total as weights and biases."""
        return {**asdict(self), "weights": self.weights, "total": self.total}


def projection_parameters(config: AttentionConfig, source: Source) -> Size:
    """The learned projection of one source; a low-rank one is two matrices and one bias."""
    width, rank = config.width(source), config.rank(source)
    weights = config.d_model * width if rank is None else rank * (config.d_model + width)
    return Size(weights, width if config.bias else 0)


def attention_parameters(config: AttentionConfig) -> Size:
    """One attention layer with everything that its variant adds to it."""
    variant, head_dim = config.variant, config.size_per_head
    heads = config.num_heads
    parts = [projection_parameters(config, source) for source in variant.projections]
    parts.append(Size(heads * head_dim * config.d_model, config.d_model if config.out_bias else 0))
    if variant.query_form == "map":
        parts.append(Size(heads * head_dim**2))
    if variant.plus:
        maps = heads if config.position.plus_per_head else 1
        parts.append(Size(maps * config.position.plus_features, maps))
    if variant.positions == "relative":
        reach = config.position.relative_distance
        parts.append(Size(heads * (reach + 1 if config.causal else 2 * reach + 1)))
    return _sum(parts)


def feed_forward_parameters(config: BlockConfig, d_model: int) -> Size:
    """One feed-forward network: two matrices, or the three of SwiGLU."""
    matrices = 3 if config.activation == "swiglu" else 2
    biases = config.d_ff + d_model if config.has_feed_forward_bias else 0
    return Size(matrices * d_model * config.d_ff, biases)


def norm_parameters(config: BlockConfig, d_model: int) -> Size:
    """One normalisation: a gain, and a bias where LayerNorm has one."""
    return Size(d_model, d_model if config.norm == "layernorm" and config.bias else 0)


def network_parameters(config: NetworkConfig) -> ParameterCount:
    """All parameters of a network by part.

    Args:
        config: An encoder or a language model.
    """
    d_model, block = config.d_model, config.block
    norm = norm_parameters(block, d_model)
    parts = {
        "embedding": _embedding(config),
        "positions": Size(config.max_tokens * d_model if config.positions == "learned" else 0),
        "attention": _sum([attention_parameters(layer) for layer in config.layers]),
        "feed_forward": _sum([feed_forward_parameters(block, d_model)] * config.num_layers),
        "norms": _sum([norm] * (2 * config.num_layers) + _output_norms(config)),
        "head": _head(config),
    }
    return ParameterCount(
        **{name: size.total for name, size in parts.items()}, biases=_sum(parts.values()).biases
    )


def _embedding(config: NetworkConfig) -> Size:
    biases = config.d_model if isinstance(config, EncoderConfig) else 0
    return Size(config.vocabulary * config.d_model, biases)


def _output_norms(config: NetworkConfig) -> list[Size]:
    pre = config.block.norm_placement == "pre"
    norms = [norm_parameters(config.block, config.d_model)] if pre else []
    # The encoder's head has a LayerNorm of its own, whatever the blocks have.
    return (
        [*norms, Size(config.d_model, config.d_model)]
        if isinstance(config, EncoderConfig)
        else norms
    )


def _head(config: NetworkConfig) -> Size:
    d_model = config.d_model
    if isinstance(config, LanguageModelConfig):
        weights = 0 if config.tied_head else d_model * config.vocabulary
        return Size(weights, config.vocabulary if config.head_bias else 0)
    hidden = Size(d_model * d_model, d_model)
    return _sum([hidden, Size(d_model * config.classes, config.classes)])


def _sum(parts: Iterable[Size]) -> Size:
    sizes = tuple(parts)
    return Size(sum(size.weights for size in sizes), sum(size.biases for size in sizes))
