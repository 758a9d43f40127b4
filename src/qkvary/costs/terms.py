"""Cost rules of the score terms, role terms and cores of ``arch.terms``, by name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from qkvary.arch.attention import LINEAR_CHUNK, AttentionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCost:
    """The cost rule of one term. Elementwise work on the scores is not counted."""

    parameters: Callable[[AttentionConfig], tuple[int, int]] | None = None
    """Returns the numbers of weights and of biases in a layer."""
    macs: Callable[[AttentionConfig, int, int], int] | None = None
    """Returns the MACs of a layer, given the numbers of keys and of query-key pairs."""
    decode_macs: Callable[[AttentionConfig, int], int] | None = None
    """Returns the MACs of one decoded token, given the number of keys. The default is ``macs``."""
    absorbs_key: bool = True
    """Whether the key's projection can be folded into the query."""


def term_costs(config: AttentionConfig) -> Iterator[TermCost]:
    """Return the cost rules of a layer's terms."""
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
    """Return the MACs of computing the key bias g(j) once per batch and adding it to the scores."""
    bias = keys * _plus_maps(config) * config.position.plus_column_features
    return bias + _key_bias_macs(config, keys, pairs)


def _key_bias_macs(config: AttentionConfig, _keys: int, pairs: int) -> int:
    # The bias is an extra channel of the keys for each separate map of a group's query heads; with
    # a normalised diagonal or a soft cap, it is added elementwise instead.
    if config.variant.diagonal != "none" or config.variant.soft_cap is not None:
        return 0
    return pairs * config.num_heads * max(1, _plus_maps(config) // config.num_kv_heads)


def _plus_maps(config: AttentionConfig) -> int:
    return config.num_heads if config.position.plus_per_head else 1


def _relative_parameters(config: AttentionConfig) -> tuple[int, int]:
    reach = config.position.relative_distance
    return config.num_heads * (reach + 1 if config.causal else 2 * reach + 1), 0


def _head_norm_parameters(config: AttentionConfig) -> tuple[int, int]:
    """Return the numbers of weights and of biases of the norms of query and key."""
    size = config.size_per_head
    if config.variant.head_norm == "qk-norm":
        return 2 * size, 0
    return config.num_heads * size + config.width(config.variant.sharing.key), 0


def _latent_parameters(config: AttentionConfig) -> tuple[int, int]:
    return 2 * config.width(config.variant.sharing.key) * config.kv_width, 0


def _expanding_macs(config: AttentionConfig, keys: int, _pairs: int) -> int:
    """Return the MACs of expanding every latent to a key and a value."""
    return keys * _latent_parameters(config)[0]


def _absorbed_macs(config: AttentionConfig, keys: int) -> int:
    """Return the extra MACs of computing scores and values in the latent, not in the heads."""
    # A core whose scores are not dot products needs the keys themselves.
    if config.variant.core != "softmax":
        return _expanding_macs(config, keys, keys)
    rank, size = config.width(config.variant.sharing.key), config.size_per_head
    return 2 * config.num_heads * (rank * size + keys * (rank - size))


_NOT_KNOWN = TermCost(absorbs_key=False)
"""The cost rule of a term from a user's file. It counts nothing."""

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
"""The cost rule of each term, by name."""


def _pairwise_macs(config: AttentionConfig, _keys: int, pairs: int) -> int:
    """Return the MACs of query times key and of attention weights times values."""
    return 2 * pairs * config.num_heads * config.size_per_head


def _reordered_macs(config: AttentionConfig, keys: int, pairs: int) -> int:
    """Return the MACs of q (k^T v) or of (q k^T) v, whichever takes fewer."""
    return min(_pairwise_macs(config, keys, pairs), _state_macs(config, pairs // keys, keys))


def _state_macs(config: AttentionConfig, queries: int, keys: int) -> int:
    """Return the MACs of adding keys to a state and multiplying queries by the state."""
    size, heads = config.size_per_head, config.num_heads
    sums = heads * queries * size if config.variant.is_normalised else 0
    return size**2 * (config.num_kv_heads * keys + heads * queries) + sums


def _chunked_macs(config: AttentionConfig, keys: int, pairs: int) -> int:
    """Return the MACs of linear attention.

    Causal attention uses pairs of tokens within a chunk, and a state of all earlier chunks.
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
    """Return the MACs of linear attention over a prompt and of the state after the prompt."""
    if keys == 1:
        return _recurrent_macs(config, keys)
    # Such a prompt is always processed in chunks, even with the explicit kernel.
    left = keys if keys <= LINEAR_CHUNK else keys % LINEAR_CHUNK
    chunked = replace(config, kernel="auto")
    return _chunked_macs(chunked, keys, pairs) + _state_macs(config, 0, left)


def _recurrent_macs(config: AttentionConfig, _keys: int) -> int:
    return _state_macs(config, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCost:
    """The cost rule of one core: the MACs of its scores and of the weighted sums of values."""

    macs: Callable[[AttentionConfig, int, int], int] = _pairwise_macs
    """Returns the MACs of a layer, given the numbers of keys and of query-key pairs."""
    prompt_macs: Callable[[AttentionConfig, int, int], int] | None = None
    """Returns the MACs of a prompt that fills a cache. The default is ``macs``."""
    decode_macs: Callable[[AttentionConfig, int], int] | None = None
    """Returns the MACs of one decoded token, given the number of keys. The default is ``macs``."""


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
"""The cost rule of each core, by name."""
