"""Multiply-accumulates of a forward pass, derived from a configuration.

Only matrix products are counted, which is half of what torch's flop counter reports under the
MATH attention backend for the explicit kernel. Elementwise work is not: norms, activations,
rotations, the softmax, and what relative biases, ALiBi and the diagonal normalisation do to the
scores. Looking an embedding up is free.
"""

from dataclasses import asdict, dataclass
from typing import Literal

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, EncoderConfig, NetworkConfig
from qkvary.arch.sharing import Source

Pairs = Literal["square", "visible"]
"""Which pairs of tokens are counted: all of them, as the papers and an explicit kernel do, or those
that causality and the window leave visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MacCount:
    """Multiply-accumulates of one sequence by part."""

    projections: int
    """Input and output projections and query maps of all layers."""
    scores: int
    """Scores, the key bias of ``+`` and weighted values of all layers."""
    feed_forward: int
    """The feed-forward networks of all layers."""
    head: int
    """What makes logits of features."""

    @property
    def attention(self) -> int:
        """Projections and scores."""
        return self.projections + self.scores

    @property
    def total(self) -> int:
        """All of them."""
        return self.attention + self.feed_forward + self.head

    def to_dict(self) -> dict[str, int]:
        """The parts and their total."""
        return {**asdict(self), "total": self.total}


def visible_pairs(config: AttentionConfig, length: int) -> int:
    """Pairs (query, key) that no mask hides in a sequence of ``length`` real tokens."""
    reach = length if config.variant.window is None else min(config.variant.window, length)
    # Queries with a full reach behind them, then those at the start that have less.
    behind = (length - reach) * reach + reach * (reach + 1) // 2
    return behind if config.causal else 2 * behind - length


def projection_macs_per_token(config: AttentionConfig, source: Source) -> int:
    """One token through the learned projection of one source."""
    width, rank = config.width(source), config.rank(source)
    return config.d_model * width if rank is None else rank * (config.d_model + width)


def attention_projection_macs_per_token(config: AttentionConfig) -> int:
    """One token through all projections of a layer, the output's and the query map included."""
    inputs = sum(projection_macs_per_token(config, source) for source in config.variant.projections)
    heads, head_dim = config.num_heads, config.size_per_head
    query_map = heads * head_dim**2 if config.variant.query_form == "map" else 0
    return inputs + query_map + heads * head_dim * config.d_model


def score_macs(config: AttentionConfig, length: int, pairs: Pairs) -> int:
    """Scores and weighted values of one layer over one sequence, and the key bias of ``+``."""
    count = length * length if pairs == "square" else visible_pairs(config, length)
    content = 2 * count * config.num_heads * config.size_per_head
    return content + _plus_macs(config, length, count)


def feed_forward_macs_per_token(config: BlockConfig, d_model: int) -> int:
    """One token through one feed-forward network."""
    return (3 if config.activation == "swiglu" else 2) * d_model * config.d_ff


def network_macs(config: NetworkConfig, *, length: int, pairs: Pairs = "square") -> MacCount:
    """Multiply-accumulates of the forward pass over one sequence.

    Args:
        config: An encoder or a language model.
        length: Tokens of the sequence, with logits for each.
        pairs: ``square`` counts every pair of tokens, as the papers do and as an explicit kernel
            computes; ``visible`` only those that no mask hides.

    Raises:
        ValueError: for a length that is not positive.
    """
    if length < 1:
        raise ValueError(f"expected a length of at least 1 token, got {length}")
    d_model, layers = config.d_model, config.layers
    projections = sum(attention_projection_macs_per_token(layer) for layer in layers)
    feed_forward = feed_forward_macs_per_token(config.block, d_model) * config.num_layers
    return MacCount(
        projections=projections * length,
        scores=sum(score_macs(layer, length, pairs) for layer in layers),
        feed_forward=feed_forward * length,
        head=_head_macs_per_token(config) * length,
    )


def _plus_macs(config: AttentionConfig, length: int, pairs: int) -> int:
    """The key bias g(j) of ``+``: made once for a whole batch, then a channel more in the keys.

    One channel, or one for each query head of a group that has a map of its own. A normalised
    diagonal stands between product and bias, which is then added elementwise.
    """
    if not config.variant.plus:
        return 0
    maps = config.num_heads if config.position.plus_per_head else 1
    bias = length * maps * config.position.plus_column_features
    if config.variant.diagonal != "none":
        return bias
    return bias + pairs * config.num_heads * max(1, maps // config.num_kv_heads)


def _head_macs_per_token(config: NetworkConfig) -> int:
    if isinstance(config, EncoderConfig):
        return config.d_model * (config.d_model + config.classes)
    return config.d_model * config.vocabulary
