"""The blocks that models are made of: kinds of attention, feed-forward networks and experts.

The classes only describe sizes. They also describe blocks that this package cannot build.
"""

from dataclasses import dataclass, replace
from typing import Literal

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.parts import Linear, Norm, check_sizes
from qkvary.arch.sharing import Source
from qkvary.arch.variants import Variant

Storage = Literal["needed", "both", "value and slice", "input", "latent"]
"""The tensors that a cache stores per token.

- ``needed``: each source of key and value; a shared source is stored once.
- ``both``: rotated keys and values, even if one source would suffice, as in engines.
- ``value and slice``: the value and the rotated channels of the key.
- ``input``: the layer input, from which every step computes keys and values again.
- ``latent``: the inner channels of low-rank projections whose output is wider.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedAttention:
    """Attention whose queries, keys and values are separate or shared projections of its input."""

    config: AttentionConfig
    """Sharing, sizes, window and rotation."""
    norms: tuple[Norm, ...] = ()
    """Learned normalisations of the heads of queries and keys."""
    unbiased: tuple[Source, ...] = ()
    """Sources whose projections have no bias, although ``config.bias`` is true."""
    entries: int = 0
    """Number of other learned parameters: attention sinks, a table of relative positions."""
    reads_layer: int | None = None
    """The layer whose stored keys and values this layer reads instead of its own."""
    storage: Storage = "needed"
    """The tensors that the cache stores per token."""

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.config.d_model

    @property
    def reach(self) -> int | None:
        """Number of tokens after which a cache entry is never read again; ``None`` if unlimited."""
        return self.config.variant.reach

    def with_variant(self, variant: Variant) -> "ProjectedAttention":
        """Return the layer with another variant; its window and positions stay."""
        own = self.config.variant
        given = replace(
            variant.keep_positions(own),
            window=own.window if variant.window is None else variant.window,
        )
        if self.reads_layer is not None and given.sharing.query in given.cached:
            raise ValueError(
                "expected a separate query in a layer that reads another layer's keys and "
                f"values, got a query made from {given.sharing.query}"
            )
        # Only the layer's own projections may lack a bias; those of another sharing have biases.
        unbiased = self.unbiased if given.sharing == own.sharing else ()
        config = replace(self.config, variant=given)
        return replace(self, config=config, unbiased=unbiased, storage="needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The module of sparse attention that selects the tokens to attend to, by keys of its own.

    Source: DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1.
    """

    width: int
    """Channels of the indexer's single key."""
    heads: int
    top: int
    """Number of tokens that the indexer selects for a query."""
    is_shared: bool = False
    """Whether the layer uses the selection of the indexer of an earlier layer."""

    def __post_init__(self) -> None:
        check_sizes(self, "width", "heads", "top")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values are expanded from one stored latent.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.
    """

    d_model: int
    num_heads: int
    q_rank: int | None
    """Inner width of the query's projection; ``None`` for a full-rank projection."""
    kv_rank: int
    """Channels of the stored latent."""
    nope_dim: int
    """Channels of a head that are not rotated."""
    rope_dim: int
    """Rotated channels; all heads share one rotated key."""
    value_dim: int
    """Channels of a head's value."""
    bias: bool = False
    """Whether the projections into the latents and out of the layer have biases."""
    indexer: Indexer | None = None
    """The module that selects the tokens to read; ``None`` if the layer reads all tokens."""
    window: int | None = None
    """Number of tokens that a query sees, itself included; ``None`` for all."""

    def __post_init__(self) -> None:
        check_sizes(self, "d_model", "num_heads", "q_rank", "kv_rank", "window")
        check_sizes(self, "nope_dim", "rope_dim", "value_dim")
        if self.own_indexer and self.q_rank is None:
            raise ValueError(
                "expected a q_rank, because the indexer reads the query latent, got none"
            )
        # The width of all heads together has to be a valid size too.
        tuple(self.linears)

    @property
    def reach(self) -> int | None:
        """Number of tokens after which a cache entry is never read again; ``None`` if unlimited."""
        return self.window

    @property
    def most_keys(self) -> int | None:
        """Maximum number of tokens that a query attends to, set by the window or the indexer."""
        return self.window if self.indexer is None else self.indexer.top

    @property
    def key_dim(self) -> int:
        """Number of channels per head in the dot product of a query and a key."""
        return self.nope_dim + self.rope_dim

    @property
    def own_indexer(self) -> Indexer | None:
        """The indexer whose weights and keys belong to this layer, if there is one."""
        return None if self.indexer is None or self.indexer.is_shared else self.indexer

    @property
    def stored_width(self) -> int:
        """Number of channels that attention reads per token: the latent plus the rotated key."""
        return self.kv_rank + self.rope_dim

    @property
    def stored_widths(self) -> tuple[int, ...]:
        """Numbers of stored channels per token: latent, shared rotated key, and indexer's key."""
        index = self.own_indexer
        return (self.kv_rank, self.rope_dim, *(() if index is None else (index.width,)))

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All projections: query, latent, keys and values, output, and those of the indexer."""
        heads, d_model, bias = self.num_heads, self.d_model, self.bias
        queries = heads * self.key_dim
        query = (Linear(d_model, queries),)
        if self.q_rank is not None:
            query = (Linear(d_model, self.q_rank, bias=bias), Linear(self.q_rank, queries))
        own = (
            *query,
            Linear(d_model, self.stored_width, bias=bias),
            Linear(self.kv_rank, heads * (self.nope_dim + self.value_dim)),
            Linear(heads * self.value_dim, d_model, bias=bias),
        )
        index = self.own_indexer
        if index is None:
            return own
        return (
            *own,
            Linear(self.q_rank or 1, index.heads * index.width),
            Linear(d_model, index.width),
            Linear(d_model, index.heads),
        )

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The normalisations of the latents and of the indexer's key."""
        query = () if self.q_rank is None else (Norm(self.q_rank),)
        index = self.own_indexer
        own = () if index is None else (Norm(index.width, bias=True),)
        return (*query, Norm(self.kv_rank), *own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """The module that summarises past tokens for compressed attention.

    Source: DeepSeek-AI 2026, "DeepSeek-V4", section 2.3, as implemented in transformers 5.23.
    """

    width: int
    """Channels of a summary."""
    rate: int
    """Tokens per summary."""
    overlapping: bool
    """Whether a summary also covers the tokens of the previous summary. Its projections are then
    twice as wide."""

    def __post_init__(self) -> None:
        check_sizes(self, "width", "rate")

    @property
    def projected_width(self) -> int:
        """Width of the projection to a token's content. The projection to its gate is as wide."""
        return 2 * self.width if self.overlapping else self.width

    def stored_rows(self, tokens: int) -> tuple[tuple[int, int], ...]:
        """Return the rows kept after ``tokens`` tokens, as pairs of row count and width.

        The rows hold the summaries. They also hold the content and gate of every token that a
        later summary will cover.
        """
        summaries, waiting = divmod(tokens, self.rate)
        overlap = 2 * self.rate if self.overlapping and summaries else 0
        return (
            (summaries, self.width),
            (2 * waiting, self.projected_width),
            (overlap, self.width),
        )

    def last_closing(self, tokens: int) -> int:
        """Return the number of the first ``tokens`` tokens that complete summaries cover."""
        return tokens - tokens % self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """Attention that reads a window of tokens; all query heads share one KV head.

    If the layer has a compressor, it also reads summaries of past tokens.

    Source: DeepSeek-AI 2026, "DeepSeek-V4", section 2.3, as implemented in transformers 5.23.
    """

    d_model: int
    num_heads: int
    head_dim: int
    """Channels of a head. One stored tensor of this width is both the key and the value."""
    q_rank: int
    """Inner width of the query's projection."""
    o_groups: int
    """Groups of heads, each with its own part of the output projection."""
    o_rank: int
    """Output channels of each group."""
    window: int
    """Number of recent tokens that are kept uncompressed."""
    compressor: Compressor | None = None
    """The module that summarises earlier tokens; ``None`` if the layer reads only its window."""
    indexer: Compressor | None = None
    """A smaller compressor. By its summaries, a query selects summaries of ``compressor``."""
    index_heads: int = 0
    index_top: int = 0
    """Number of summaries that the indexer selects for a query."""

    def __post_init__(self) -> None:
        check_sizes(
            self, "d_model", "num_heads", "head_dim", "q_rank", "o_groups", "o_rank", "window"
        )
        if self.num_heads * self.head_dim % self.o_groups:
            raise ValueError(
                f"expected o_groups that divide {self.num_heads * self.head_dim} channels, "
                f"got {self.o_groups}"
            )
        # The width of all heads together has to be a valid size too.
        tuple(self.linears)

    @property
    def reach(self) -> int:
        """Number of tokens after which an uncompressed entry is never read again."""
        return self.window

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All projections, including the compressor's and the indexer's."""
        width, out = self.num_heads * self.head_dim, self.o_groups * self.o_rank
        linears = [
            Linear(self.d_model, self.q_rank),
            Linear(self.q_rank, width),
            Linear(self.d_model, self.head_dim),
            Linear(width, out, groups=self.o_groups),
            Linear(out, self.d_model),
        ]
        for part in self.compressors:
            linears += [Linear(self.d_model, part.projected_width)] * 2
        if self.indexer:
            queries = self.index_heads * self.indexer.width
            linears += [Linear(self.q_rank, queries), Linear(self.d_model, self.index_heads)]
        return tuple(linears)

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The normalisations of the query's latent, the key, and the summaries."""
        own = (Norm(self.q_rank), Norm(self.head_dim))
        return (*own, *(Norm(part.width) for part in self.compressors))

    @property
    def entries(self) -> int:
        """Number of parameters of attention sinks and of the compressors' position embeddings."""
        return self.num_heads + sum(part.rate * part.projected_width for part in self.compressors)

    @property
    def compressors(self) -> tuple[Compressor, ...]:
        """The compressor and the indexer, if the layer has them."""
        return tuple(part for part in (self.compressor, self.indexer) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLayer:
    """A layer that mixes tokens through a state of fixed size instead of a cache of tokens."""

    kind: str
    """The name of the mechanism in tables, such as ``Mamba 2``."""
    d_model: int
    sums: int = 0
    """Number of state values that are sums over all tokens, kept in single precision or better."""
    recent: int = 0
    """Number of state values that hold recent tokens, for a convolution."""
    taps: int = 0
    """Number of tokens that the convolution sees, the new one included; engines store one fewer."""
    sum_bits: int | None = None
    """Bits per value of ``sums`` if engines fix them; ``None``: the bits of activations."""
    linears: tuple[Linear, ...] = ()
    """All matrices that a token passes through."""
    norms: tuple[Norm, ...] = ()
    entries: int = 0
    """Number of other learned parameters: the taps of a convolution, decays, step sizes."""
    products: int = 0
    """Multiply-accumulates per token in products with the taps and with the state."""

    def __post_init__(self) -> None:
        check_sizes(self, "d_model")


AttentionLayer = ProjectedAttention | LatentAttention | CompressedAttention | RecurrentLayer


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A feed-forward network of two matrices, or of three with a gate."""

    d_model: int
    d_ff: int
    gated: bool = False
    """Whether a third matrix gates the inner channels (SwiGLU, GeGLU)."""
    bias: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "d_model", "d_ff")

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The two or three matrices of the network."""
        up = Linear(self.d_model, self.d_ff, bias=self.bias)
        down = Linear(self.d_ff, self.d_model, bias=self.bias)
        return (up, up, down) if self.gated else (up, down)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: each token passes through a few of many feed-forward networks."""

    expert: FeedForward
    count: int
    """Number of routed experts."""
    active: int
    """Number of routed experts that a token passes through."""
    shared: FeedForward | None = None
    """The shared experts as one network, through which every token passes."""
    router: Linear | None = None
    """The matrix that scores the experts; ``None`` if a table chooses them."""
    entries: int = 0
    """Number of other learned parameters of the router."""

    def __post_init__(self) -> None:
        check_sizes(self, "count", "active")
        if self.active > self.count:
            raise ValueError(f"expected at most {self.count} active experts, got {self.active}")

    @property
    def always(self) -> tuple[Linear, ...]:
        """The matrices that every token passes through: the router and the shared experts."""
        router = () if self.router is None else (self.router,)
        return router if self.shared is None else (*router, *self.shared.linears)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block of a stack: attention, feed-forward networks and normalisations."""

    attention: AttentionLayer
    feed_forward: tuple[FeedForward | Experts, ...]
    """The feed-forward networks that follow attention: one, or two if the output of a dense network
    is added to the output of experts."""
    norms: tuple[Norm, ...]
    """The normalisations of attention and feed-forward network."""
    cross: ProjectedAttention | None = None
    """Attention over an encoder's output."""
    others: tuple[Linear, ...] = ()
    """Other matrices that every token passes through."""
    entries: int = 0
    """Number of other learned parameters."""
    products: int = 0
    """Multiply-accumulates per token in products with matrices that are computed, not learned."""
    has_own_weights: bool = True
    """Whether the layer has its own weights; False if it reuses those of an earlier layer."""


def share_layer(layer: Layer, variant: Variant) -> Layer:
    """Return the block with the sharing of ``variant`` in its attention and cross attention.

    A recurrent layer is returned unchanged: it has neither keys nor values.
    """
    if not isinstance(layer.attention, ProjectedAttention):
        if isinstance(layer.attention, RecurrentLayer):
            return layer
        kind = "latent" if isinstance(layer.attention, LatentAttention) else "compressed"
        # A ValueError, not a TypeError: the argument's type is right, but the choice does not fit.
        raise ValueError(
            f"expected layers whose projections can be shared, got {kind} attention, which "
            "already stores one tensor for keys and values"
        )
    cross = layer.cross.with_variant(variant) if layer.cross else None
    return replace(layer, attention=layer.attention.with_variant(variant), cross=cross)
