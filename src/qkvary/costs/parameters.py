"""Parameters by part, derived from a model; what score terms and cores add to all costs.

Does not know ``nn``: the two are independent readings of one specification, and a contract test
holds them equal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from qkvary.arch.attention import LINEAR_CHUNK, AttentionConfig
from qkvary.arch.blocks import (
    AttentionLayer,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    ProjectedAttention,
)
from qkvary.arch.models import Model, as_model, count_kinds
from qkvary.arch.networks import Network
from qkvary.arch.parts import Linear, Norm, Table
from qkvary.arch.sharing import Source


class Size(NamedTuple):
    """The numbers of a part, matrices and biases counted separately."""

    weights: int
    """Number of entries of matrices, tables and gains."""
    biases: int = 0
    """Number of entries of biases."""

    @property
    def total(self) -> int:
        """Weights and biases."""
        return self.weights + self.biases


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Learned numbers of a network by part."""

    embedding: int
    """The token embeddings; of an encoder, with their bias."""
    positions: int
    """Learned absolute positions. Position terms of the scores are counted under ``attention``."""
    attention: int
    """Input and output projections, query maps and score terms of all layers."""
    feed_forward: int
    """The feed-forward networks of all layers, experts and routers included."""
    norms: int
    """Gains and biases of every normalisation, including the one before the output."""
    head: int
    """The output head; 0 if it is the embedding."""
    other: int = 0
    """Everything else: per-layer inputs, hyper-connections, an encoder's stem."""
    biases: int
    """The number of biases among all parameters."""

    @property
    def total(self) -> int:
        """All parameters, each counted once."""
        parts = (self.embedding, self.positions, self.attention, self.feed_forward)
        return sum(parts) + self.norms + self.head + self.other

    @property
    def weights(self) -> int:
        """Everything that is not a bias."""
        return self.total - self.biases

    def to_dict(self) -> dict[str, int]:
        """Return the parts, their total, and the same total as weights and biases."""
        return {**asdict(self), "weights": self.weights, "total": self.total}


def projection_parameters(config: AttentionConfig, source: Source) -> Size:
    """Return the size of a source's projection; a low-rank one is two matrices and a bias."""
    width, rank = config.width(source), config.rank(source)
    weights = config.d_model * width if rank is None else rank * (config.d_model + width)
    return Size(weights, width if config.bias else 0)


def attention_parameters(config: AttentionConfig) -> Size:
    """Return the size of one attention layer with everything that its variant adds."""
    return _projected(ProjectedAttention(config=config))


def layer_attention_parameters(attention: AttentionLayer) -> Size:
    """Return the size of one attention layer of any kind, without its normalisations."""
    if isinstance(attention, ProjectedAttention):
        return _projected(attention)
    entries = 0 if isinstance(attention, LatentAttention) else attention.entries
    return _add([_count(attention.linears), Size(entries)])


def _feed_forward_parameters(part: FeedForward | Experts) -> Size:
    """Return the size of one feed-forward network, or of all experts and their router."""
    if isinstance(part, FeedForward):
        return _count(part.linears)
    routed = _count(part.expert.linears)
    every = Size(routed.weights * part.count, routed.biases * part.count)
    return _add([every, _count(part.always), Size(part.entries)])


def network_parameters(config: Network) -> ParameterCount:
    """Return all parameters of a network by part.

    Args:
        config: An encoder or a language model.
    """
    return model_parameters(as_model(config))


def model_parameters(model: Model) -> ParameterCount:
    """Return all parameters of a model by part, including an encoder's."""
    parts: dict[str, list[Size]] = {
        "embedding": [_count(model.tables)],
        "positions": [_count(model.positions)],
        "attention": [],
        "feed_forward": [],
        "norms": [_count(model.norms)],
        "head": [_count(model.head)],
        "other": [_count(model.others), Size(model.entries)],
    }
    layers = model.layers
    if model.encoder is not None:
        layers += model.encoder.layers
        parts["positions"].append(_count(model.encoder.positions))
        parts["norms"].append(_count(model.encoder.norms))
        parts["other"].append(_count(model.encoder.stem))
    for layer, count in count_kinds(layers):
        if not layer.has_own_weights:
            continue
        crossing = () if layer.cross is None else (layer.cross,)
        attentions = map(layer_attention_parameters, (layer.attention, *crossing))
        own = {
            "attention": _add(attentions),
            "feed_forward": _add(map(_feed_forward_parameters, layer.feed_forward)),
            "norms": _count(layer_norms(layer)),
            "other": _add([_count(layer.others), Size(layer.entries)]),
        }
        for name, size in own.items():
            parts[name].append(Size(count * size.weights, count * size.biases))
    sums = {name: _add(sizes) for name, sizes in parts.items()}
    return ParameterCount(
        **{name: size.total for name, size in sums.items()}, biases=_add(sums.values()).biases
    )


def active_parameters(model: Model) -> int:
    """Return the parameters that one token uses: its chosen experts, and everything else."""
    idle = 0
    every = (*model.layers, *(model.encoder.layers if model.encoder else ()))
    for layer, count in count_kinds(every):
        for part in layer.feed_forward:
            if isinstance(part, Experts):
                idle += count * (part.count - part.active) * _count(part.expert.linears).total
    return model_parameters(model).total - idle


def layer_norms(layer: Layer) -> tuple[Norm, ...]:
    """Return every learned normalisation of a block, including those inside attention."""
    crossing = () if layer.cross is None else layer.cross.norms
    return (*layer.norms, *layer.attention.norms, *crossing)


def _projected(attention: ProjectedAttention) -> Size:
    config = attention.config
    variant, head_dim, heads = config.variant, config.size_per_head, config.num_heads
    own: list[Source] = [
        source
        for source in variant.projections
        if attention.reads_layer is None or source not in variant.cached
    ]
    parts = [
        Size(size.weights, 0 if source in attention.unbiased else size.biases)
        for source, size in ((source, projection_parameters(config, source)) for source in own)
    ]
    parts.append(Size(heads * head_dim * config.d_model, config.d_model if config.out_bias else 0))
    if variant.query_form == "map":
        parts.append(Size(heads * head_dim**2))
    parts += [Size(*cost.parameters(config)) for cost in term_costs(config) if cost.parameters]
    return _add([*parts, Size(attention.entries)])


def _count(parts: Iterable[Linear | Table | Norm]) -> Size:
    return _add(
        Size(0 if isinstance(part, Linear) and part.tied else part.weights, part.biases)
        for part in parts
    )


def _add(parts: Iterable[Size]) -> Size:
    sizes = tuple(parts)
    return Size(sum(size.weights for size in sizes), sum(size.biases for size in sizes))


# ---- score terms and cores


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCost:
    """The rule of one term. Elementwise work on the scores is not counted."""

    parameters: Callable[[AttentionConfig], tuple[int, int]] | None = None
    """Number of weights and biases in a layer."""
    macs: Callable[[AttentionConfig, int, int], int] | None = None
    """MACs of a layer, by its number of keys and its number of pairs of query and key."""
    decode_macs: Callable[[AttentionConfig, int], int] | None = None
    """MACs of one decoded token, by the number of keys; None if ``macs`` gives them."""
    absorbs_key: bool = True
    """Whether the key's projection can be folded into the query, because nothing changes keys or
    their products in between."""


def term_costs(config: AttentionConfig) -> Iterator[TermCost]:
    """Return the rules of the terms that a layer has."""
    return (TERMS.get(term.name, _NOT_KNOWN) for term in config.variant.terms)


def term_macs(config: AttentionConfig, keys: int, pairs: int) -> int:
    """Return the MACs of all terms of a layer."""
    return sum(cost.macs(config, keys, pairs) for cost in term_costs(config) if cost.macs)


def decode_term_macs(config: AttentionConfig, keys: int) -> int:
    """Return the MACs of all terms of a layer for one decoded token."""
    own = [cost.decode_macs for cost in term_costs(config) if cost.decode_macs]
    rest = [cost.macs for cost in term_costs(config) if cost.macs and not cost.decode_macs]
    return sum(rule(config, keys) for rule in own) + sum(rule(config, keys, keys) for rule in rest)


def _plus_macs(config: AttentionConfig, keys: int, pairs: int) -> int:
    """Return the MACs of the key bias g(j), made once a batch, and of its channel in the keys.

    One channel, or one for each query head of a group if heads have separate maps. With a
    normalised diagonal or a soft cap, the bias is added elementwise instead.
    """
    bias = keys * _plus_maps(config) * config.position.plus_column_features
    return bias + _key_bias_macs(config, keys, pairs)


def _key_bias_macs(config: AttentionConfig, _keys: int, pairs: int) -> int:
    if config.variant.diagonal != "none" or config.variant.soft_cap is not None:
        return 0
    return pairs * config.num_heads * max(1, _plus_maps(config) // config.num_kv_heads)


def _plus_maps(config: AttentionConfig) -> int:
    return config.num_heads if config.position.plus_per_head else 1


def _relative_parameters(config: AttentionConfig) -> tuple[int, int]:
    reach = config.position.relative_distance
    return config.num_heads * (reach + 1 if config.causal else 2 * reach + 1), 0


def _head_norm_parameters(config: AttentionConfig) -> tuple[int, int]:
    """Return one gain for the query and one for the key: per head, or for all heads."""
    size = config.size_per_head
    if config.variant.head_norm == "qk-norm":
        return 2 * size, 0
    return config.num_heads * size + config.width(config.variant.sharing.key), 0


def _latent_parameters(config: AttentionConfig) -> tuple[int, int]:
    return 2 * config.width(config.variant.sharing.key) * config.kv_width, 0


def _expanding_macs(config: AttentionConfig, keys: int, _pairs: int) -> int:
    """Return the MACs of expanding every latent to key and value."""
    return keys * _latent_parameters(config)[0]


def _absorbed_macs(config: AttentionConfig, keys: int) -> int:
    """Return the MACs of scores and values in the latent, minus those in the heads.

    The query absorbs the key's matrix, and the value's matrix is applied to the mixture. A core
    whose scores are not dot products needs the keys themselves.
    """
    if config.variant.core != "softmax":
        return _expanding_macs(config, keys, keys)
    rank, size = config.width(config.variant.sharing.key), config.size_per_head
    return 2 * config.num_heads * (rank * size + keys * (rank - size))


_NOT_KNOWN = TermCost(absorbs_key=False)
"""The costs of a part from a user's file, which are not counted."""

TERMS: Mapping[str, TermCost] = {
    "kv_norm": TermCost(
        parameters=lambda config: (config.width(config.variant.sharing.key), 0), absorbs_key=False
    ),
    "latent": TermCost(
        parameters=_latent_parameters,
        macs=_expanding_macs,
        decode_macs=_absorbed_macs,
        absorbs_key=False,
    ),
    "qk-norm": TermCost(parameters=_head_norm_parameters, absorbs_key=False),
    "qk-norm-wide": TermCost(parameters=_head_norm_parameters, absorbs_key=False),
    "decoupled": TermCost(
        macs=lambda config, _, pairs: pairs * config.num_heads * config.rotated_channels
    ),
    "rotary": TermCost(absorbs_key=False),
    "diagonal": TermCost(absorbs_key=False),
    "unscaled-diagonal": TermCost(absorbs_key=False),
    "soft_cap": TermCost(),
    "plus": TermCost(
        parameters=lambda config: (
            _plus_maps(config) * config.position.plus_features,
            _plus_maps(config),
        ),
        macs=_plus_macs,
    ),
    "key_bias": TermCost(
        parameters=lambda config: (_plus_maps(config) * (1 + config.position.key_positions), 0),
        macs=_key_bias_macs,
    ),
    "relative": TermCost(parameters=_relative_parameters),
    "alibi": TermCost(),
    "temperature": TermCost(),
    "decay": TermCost(
        parameters=lambda config: (config.num_kv_heads * (config.variant.decay == "learned"), 0)
    ),
}
"""The costs of each term."""


def _pairwise_macs(config: AttentionConfig, _keys: int, pairs: int) -> int:
    """Return the MACs of the products of query and key, and of weights and values."""
    return 2 * pairs * config.num_heads * config.size_per_head


def _reordered_macs(config: AttentionConfig, keys: int, pairs: int) -> int:
    """Return the MACs of q (k^T v), or of (q k^T) v if these are fewer.

    Without a softmax the order is free, and the first is linear in the number of tokens.
    """
    return min(_pairwise_macs(config, keys, pairs), _state_macs(config, pairs // keys, keys))


def _state_macs(config: AttentionConfig, queries: int, keys: int) -> int:
    """Return the MACs that add keys to a state and apply queries to it."""
    size, heads = config.size_per_head, config.num_heads
    sums = heads * queries * size if config.variant.is_normalised else 0
    return size**2 * (config.num_kv_heads * keys + heads * queries) + sums


def _chunked_macs(config: AttentionConfig, keys: int, pairs: int) -> int:
    """Return the MACs of linear attention: pairs within chunks, and states between chunks.

    If ``pairs`` are all pairs, the products that the mask of a chunk hides are counted too.
    """
    if config.kernel == "explicit":
        return _pairwise_macs(config, keys, pairs)
    if not config.causal:
        return _reordered_macs(config, keys, pairs)
    chunks, rest = divmod(keys, LINEAR_CHUNK)
    sizes = ((chunks, LINEAR_CHUNK), (1, rest))
    is_square = pairs == keys**2
    inside = sum(count * (n**2 if is_square else n * (n + 1) // 2) for count, n in sizes)
    between = 0
    if keys > LINEAR_CHUNK:
        whole = chunks * LINEAR_CHUNK
        between = _state_macs(config, rest + (whole if chunks > 1 else 0), whole)
    return _pairwise_macs(config, keys, inside) + between


def _prompt_macs(config: AttentionConfig, keys: int, pairs: int) -> int:
    """Return the MACs of linear attention over a prompt, including the state after the last chunk.

    A cache excludes the map of all pairs, and one token takes one step of the recurrence.
    """
    if keys == 1:
        return _recurrent_macs(config, keys)
    left = keys if keys <= LINEAR_CHUNK else keys % LINEAR_CHUNK
    chunked = replace(config, kernel="auto")
    return _chunked_macs(chunked, keys, pairs) + _state_macs(config, 0, left)


def _recurrent_macs(config: AttentionConfig, _keys: int) -> int:
    return _state_macs(config, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCost:
    """The rule of one core: the MACs of its scores and mixed values."""

    macs: Callable[[AttentionConfig, int, int], int] = _pairwise_macs
    """MACs of a layer, by its number of keys and its number of pairs of query and key."""
    prompt_macs: Callable[[AttentionConfig, int, int], int] | None = None
    """MACs of a prompt that fills a cache; None if ``macs`` gives them."""
    decode_macs: Callable[[AttentionConfig, int], int] | None = None
    """MACs of one decoded token, by the number of keys; None if ``macs`` gives them."""


_LINEAR = CoreCost(macs=_chunked_macs, prompt_macs=_prompt_macs, decode_macs=_recurrent_macs)

CORES: Mapping[str, CoreCost] = {
    "softmax": CoreCost(),
    "sima": CoreCost(macs=_reordered_macs),
    "soft": CoreCost(),
    "linear": _LINEAR,
    "linear-relu": _LINEAR,
    "linear-softmax": _LINEAR,
    "linear-identity": _LINEAR,
}
"""The costs of each core."""
