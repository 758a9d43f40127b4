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
    """The effective number of directions of a matrix, by six measures."""

    entropy: float
    """exp of the entropy of sigma / sum(sigma) (Roy and Vetterli 2007)."""
    entropy_of_squares: float
    """exp of the entropy of sigma^2 / sum(sigma^2)."""
    participation: float
    """sum(sigma^2)^2 / sum(sigma^4)."""
    energy_90: int
    """The smallest number of singular values that hold 90 % of sum(sigma^2)."""
    energy_95: int
    """The smallest number that holds 95 %."""
    energy_99: int
    """The smallest number that holds 99 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """The effective ranks of a weight matrix and of a random matrix of the same shape."""

    matrix: MatrixName
    """The weight; ``query-key`` is the product W_Q W_K^T of a head."""
    head: int | None
    """The head, counted from 1; None for all heads side by side."""
    rows: int
    """Number of rows: the channels of the layer input."""
    columns: int
    found: EffectiveRank
    chance: EffectiveRank


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineReading:
    """Cosines of two weights of a layer. They change with the basis of a head."""

    first: RoleName
    second: RoleName
    flattened: float | None
    """The cosine of the two matrices as vectors; None if one is zero."""
    columns: float | None
    """The mean cosine of corresponding channels, each a vector over the layer's width."""
    heads: tuple[float | None, ...]
    """The cosine of each head's part as a vector; one per head of the larger weight."""
    deviation: float
    """The standard deviation of ``flattened`` and ``columns`` for independent random matrices."""
    head_deviation: float
    """The standard deviation of a head's cosine for independent random matrices."""


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
    """The mean of the squared cosines."""
    weight_chance: float
    """``weight_overlap`` of random subspaces: the larger dimension over the width."""
    token_cosines: tuple[float, ...]
    """Canonical correlations between keys and values over the tokens."""
    token_overlap: float
    """The mean of the squared cosines."""
    token_chance: float
    """``token_overlap`` of two random weights and the same tokens, sampled."""
    similarity: float
    """CKA of keys as the queries see them and values as the output sees them."""
    similarity_chance: float
    """``similarity`` of random directions with the head's own singular values, sampled."""
    plain_similarity: float
    """CKA of unchanged keys and values, which depends on their basis."""
    explained: float
    """The share of the value's output that a linear map of the key predicts (least squares)."""
    explained_chance: float
    """``explained`` of two random weights and the same tokens, sampled."""
    spectrum: tuple[float, ...]
    """Singular values of the joint matrix; see :func:`subspaces.joint_spectrum`."""
    lost: float
    """The share of this spectrum's energy that one tensor of ``head_dim`` channels drops: 0 if key
    and value are equal, near 1/2 if they have nothing in common."""
    lost_chance: float
    """``lost`` of random directions with the head's own singular values, sampled."""
    forecast: float
    """The rise of the loss, in nats per token, on text that did not choose the tensor."""
    fitted_forecast: float
    """The same if the whole text both chooses and evaluates the tensor, which makes it too low."""
    score_change: float
    """The root mean square by which the forecast's tensor changes scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionReading:
    """Statistics of the attention weights of one query head."""

    head: int
    """The head, counted from 1."""
    entropy: float
    """The mean entropy of a query's weights, in nats."""
    uniform_entropy: float
    """The entropy of equal weights on all visible keys."""
    distance: float
    """The mean distance from a query to the keys that it attends to, in tokens."""
    uniform_distance: float
    """The mean distance with equal weights."""
    diagonal: float
    """The mean weight of a query on its own token."""
    uniform_diagonal: float
    """The mean weight of a query on its own token with equal weights."""
    score_asymmetry: float
    """|S - S^T| / |S + S^T| of the scores before mask and softmax: 0 if symmetric, near 1 if
    neither symmetric nor antisymmetric."""
    unmasked_asymmetry: float
    """The asymmetry of the softmax of all scores, without the causal mask."""
    asymmetry: float
    """The asymmetry of the attention weights, with the mask."""
    mask_asymmetry: float
    """The asymmetry that mask and normalisation alone cause: that of scores (S + S^T) / 2."""


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
        """The same share for random weights, averaged over KV heads."""
        return fmean(head.explained_chance for head in self.key_values)

    @property
    def forecast(self) -> float:
        """The forecast rise in loss, in nats per token, summed over KV heads."""
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
