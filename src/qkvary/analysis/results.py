"""The results of an analysis as values. Never imports torch."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RoleName = Literal["query", "key", "value"]
MatrixName = Literal["query", "key", "value", "query-key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveRank:
    """Six measures of the effective rank of a matrix, where sigma are its singular values."""

    entropy: float
    """Exponential of the entropy of sigma / sum(sigma) (Roy and Vetterli 2007)."""
    entropy_of_squares: float
    """Exponential of the entropy of sigma^2 / sum(sigma^2)."""
    participation: float
    """Participation ratio: sum(sigma^2)^2 / sum(sigma^4)."""
    energy_90: int
    """The smallest number of singular values that hold 90 % of sum(sigma^2)."""
    energy_95: int
    """The smallest number of singular values that hold 95 % of sum(sigma^2)."""
    energy_99: int
    """The smallest number of singular values that hold 99 % of sum(sigma^2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """The effective ranks of a weight matrix and of a random matrix of the same shape."""

    matrix: MatrixName
    """The weight; ``query-key`` is the product W_Q W_K^T of a head."""
    head: int | None
    """The head, counted from 1; None if the matrix contains all heads."""
    rows: int
    """Number of rows, equal to the number of channels of the layer input."""
    columns: int
    found: EffectiveRank
    chance: EffectiveRank


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineReading:
    """Cosines between two weights of a layer. They depend on the basis of each head."""

    first: RoleName
    second: RoleName
    flattened: float | None
    """The cosine of the two matrices, read as vectors; None if one matrix is zero."""
    columns: float | None
    """The mean cosine of corresponding channels. A channel is a vector over the layer's width."""
    heads: tuple[float | None, ...]
    """The cosine of each head, read as a vector; one per head of the weight with more heads."""
    deviation: float
    """Standard deviation of the cosines in ``flattened`` and ``columns`` for random matrices."""
    head_deviation: float
    """The standard deviation of the cosines in ``heads`` for random matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueReading:
    """The similarity of a KV head's key and value, and what one tensor for both costs.

    No field except ``plain_similarity`` depends on the basis of the head.
    """

    head: int
    """The KV head, counted from 1."""
    weight_cosines: tuple[float, ...]
    """Cosines of the principal angles between the row spaces of the two weights."""
    weight_overlap: float
    """The mean of the squared ``weight_cosines``."""
    weight_chance: float
    """Expected ``weight_overlap`` of random subspaces: the larger dimension / the layer's width."""
    token_cosines: tuple[float, ...]
    """Canonical correlations between keys and values over the tokens."""
    token_overlap: float
    """The mean of the squared ``token_cosines``."""
    token_chance: float
    """Mean ``token_overlap`` of random weights on the same tokens."""
    similarity: float
    """Linear CKA of the keys weighted by the queries and the values weighted by the output."""
    similarity_chance: float
    """Mean ``similarity`` of random weights that have the singular values of this head."""
    plain_similarity: float
    """Linear CKA of the unweighted keys and values; it depends on the basis of the head."""
    explained: float
    """The share of the value's output that the best linear map of the key predicts."""
    explained_chance: float
    """Mean ``explained`` of random weights on the same tokens."""
    spectrum: tuple[float, ...]
    """Singular values of the joint matrix; see :func:`subspaces.joint_spectrum`."""
    lost: float
    """The share of the energy in ``spectrum`` that is lost if one tensor of ``head_dim`` channels
    replaces key and value. 0 if these are equal, near 1/2 if they have nothing in common."""
    lost_chance: float
    """Mean ``lost`` of random weights that have the singular values of this head."""
    forecast: float
    """The forecast rise of the loss, in nats per token. Each half of the text evaluates the tensor
    that was chosen on the other half."""
    fitted_forecast: float
    """The forecast if the tensor is chosen and evaluated on the same text; it is too low."""
    score_change: float
    """The root mean square change of the scores if one tensor replaces key and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionReading:
    """Statistics of the attention weights of one query head."""

    head: int
    """The head, counted from 1."""
    entropy: float
    """The mean entropy of a query's weights, in nats."""
    uniform_entropy: float
    """``entropy`` if each query attended equally to all visible keys."""
    distance: float
    """The mean distance from a query to the keys that it attends to, in tokens."""
    uniform_distance: float
    """``distance`` if each query attended equally to all visible keys."""
    diagonal: float
    """The mean weight of a query on its own token."""
    uniform_diagonal: float
    """``diagonal`` if each query attended equally to all visible keys."""
    score_asymmetry: float
    """The asymmetry |S - S^T| / |S + S^T| of the scores S before mask and softmax. It is 0 if S is
    symmetric, and near 1 if S is neither symmetric nor antisymmetric."""
    unmasked_asymmetry: float
    """The asymmetry of the softmax of the scores without a mask."""
    asymmetry: float
    """The asymmetry of the attention weights, for which the scores are masked."""
    mask_asymmetry: float
    """The asymmetry of the attention weights if the scores were (S + S^T) / 2, a symmetric matrix.
    It is caused by mask and normalisation alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAnalysis:
    """All results of the analysis of one layer."""

    number: int
    """The layer, counted from 1."""
    label: str
    is_shared: bool
    """Whether key and value have the same source."""
    cosines: tuple[CosineReading, ...]
    ranks: tuple[RankReading, ...]
    key_values: tuple[KeyValueReading, ...]
    attention: tuple[AttentionReading, ...]

    @property
    def explained(self) -> float:
        """The share of the value's output that the key predicts, averaged over KV heads."""
        return fmean(head.explained for head in self.key_values)

    @property
    def explained_chance(self) -> float:
        """``explained`` of random weights, averaged over KV heads."""
        return fmean(head.explained_chance for head in self.key_values)

    @property
    def forecast(self) -> float:
        """The forecast rise of the loss, in nats per token, summed over KV heads."""
        return sum(head.forecast for head in self.key_values)

    @property
    def fitted_forecast(self) -> float:
        """The forecast on the text that was used to choose the tensors, summed over KV heads."""
        return sum(head.fitted_forecast for head in self.key_values)

    @property
    def score_change(self) -> float:
        """The largest ``score_change`` of any KV head."""
        return max(head.score_change for head in self.key_values)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkAnalysis:
    """All results of the analysis of a network on a text."""

    layers: tuple[LayerAnalysis, ...]
    tokens: int
    """Number of tokens that were analyzed."""
    windows: int
    context: int
    """Maximum tokens per window."""
    loss: float
    """The loss on the text, in nats per token."""
    d_model: int
    vocabulary: int
    seed: int
    """The seed of all random draws."""
    maps: NDArray[np.float64] = field(repr=False, compare=False)
    """Attention weights of the first tokens of the first window: [layers, heads, rows, columns]."""
