"""Counts the parameters of a model, by part.

This module is independent of ``nn``. Both implement one specification, and a contract test
compares them.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from qkvary.arch.attention import AttentionConfig
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
from qkvary.costs.terms import term_costs


class Size(NamedTuple):
    """The number of parameters of a part, with matrices and biases counted separately."""

    weights: int
    """Number of entries of matrices, tables and gains."""
    biases: int = 0
    """Number of entries of biases."""

    @property
    def total(self) -> int:
        """Number of weights and biases."""
        return self.weights + self.biases


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """The number of parameters of a network, by part."""

    embedding: int
    """Token embeddings, and their bias in an encoder."""
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
        """Number of all parameters, each counted once."""
        parts = (self.embedding, self.positions, self.attention, self.feed_forward)
        return sum(parts) + self.norms + self.head + self.other

    @property
    def weights(self) -> int:
        """Number of parameters that are not biases."""
        return self.total - self.biases

    def to_dict(self) -> dict[str, int]:
        """Return the parts, their total, and its division into weights and biases."""
        return {**asdict(self), "weights": self.weights, "total": self.total}


def projection_parameters(config: AttentionConfig, source: Source) -> Size:
    """Return the size of a projection; if it is low-rank, it has two matrices and one bias."""
    width, rank = config.width(source), config.rank(source)
    weights = config.d_model * width if rank is None else rank * (config.d_model + width)
    return Size(weights, width if config.bias else 0)


def attention_parameters(config: AttentionConfig) -> Size:
    """Return the size of one attention layer with everything that its variant adds."""
    return layer_attention_parameters(ProjectedAttention(config=config))


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
    """Return the number of parameters of each part of a network."""
    return model_parameters(as_model(config))


def model_parameters(model: Model) -> ParameterCount:
    """Return the number of parameters of each part of a model. An encoder is included."""
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
    """Return the number of parameters that one token uses. Experts it does not use are left out."""
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
    parts: list[Size] = []
    for source in variant.projections:
        if attention.reads_layer is None or source not in variant.cached:
            size = projection_parameters(config, source)
            parts.append(Size(size.weights, 0 if source in attention.unbiased else size.biases))
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
