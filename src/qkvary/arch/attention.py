"""One attention layer with its sizes, from which modules, costs and caches are derived."""

import functools
import math
from dataclasses import dataclass, field
from typing import Literal

from qkvary.arch.canonical import ADDED_LATER, stored
from qkvary.arch.labels import as_variant, format_label
from qkvary.arch.parts import check_choices, check_rates, check_sizes
from qkvary.arch.rotary import RotaryScaling
from qkvary.arch.sharing import IDENTITY, KEY_ROPE, QUERY_ROPE, Source
from qkvary.arch.terms import CORES
from qkvary.arch.variants import QKV, Variant

InitScheme = Literal["torch", "xavier", "xavier-matrices", "normal"]
ScaleBy = Literal["head", "width"]
IdentityScale = Literal["derived", "published", "none"]
ValueRope = Literal["none", "counter", "rotated"]
Kernel = Literal["auto", "explicit", "sdpa"]

KV_NORM_EPS = 1e-6
"""Epsilon of the norm of the tensor that key and value share, as in published latent attention."""
LARGEST_STD = 1000
"""Maximum standard deviation of initial weights. Sums of larger weights can overflow."""
LINEAR_CHUNK = 64
"""Tokens per chunk of linear attention. Tokens before the chunk are summed in a state."""
PUBLISHED_IDENTITY_SCALE = 0.5
"""The factor of the scores in the query-identity paper. The paper divides the scores by 2. The
exact number is 1/(s sqrt d), which is 1.80 at d = 768 and s = 0.02."""


@stored("Initialization")
@dataclass(frozen=True, slots=True, kw_only=True)
class Initialization:
    """Describes how weights and biases are initialised.

    - ``torch``: U(+-1/sqrt(fan_in)) for weights and biases.
    - ``xavier``: Xavier-uniform weights and zero biases.
    - ``xavier-matrices``: Xavier-uniform weights for each of the query, key and value matrices, as
      if each were as wide as all heads together; biases as in ``torch``.
    - ``normal``: N(0, std) weights and zero biases.
    """

    scheme: InitScheme = "torch"
    """The initialisation scheme."""
    std: float = 0.02
    """Standard deviation in the scheme ``normal``."""
    output_std: float | None = None
    """Standard deviation of output projections in the scheme ``normal``; ``None`` means ``std``."""
    embedding_std: float | None = field(default=None, metadata=ADDED_LATER)
    """Standard deviation of normal embedding weights; ``None`` means that ``scheme`` is used."""
    matched: bool = False
    """Whether the Xavier bound is the same for any number of input projections. If not, they are
    drawn as one packed matrix, as in the published code; the fewer there are, the larger are their
    initial weights."""

    def __post_init__(self) -> None:
        check_choices(self)
        for std in (self.std, self.output_std, self.embedding_std):
            # Written so that NaN is refused.
            if std is not None and not 0 < std <= LARGEST_STD:
                raise ValueError(f"expected a std above 0 and up to {LARGEST_STD:,}, got {std}")

    def weight_std(self, fan_in: int, fan_out: int) -> float:
        """Return the standard deviation of the weights of a ``fan_in -> fan_out`` map."""
        if self.scheme == "normal":
            return self.std
        fan = fan_in if self.scheme == "torch" else (fan_in + fan_out) / 2
        return math.sqrt(1.0 / (3.0 * fan)) if self.scheme == "torch" else math.sqrt(1.0 / fan)


TORCH_INIT = Initialization()
"""The default initialisation of torch's linear layers."""


@stored("ScaleConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleConfig:
    """Options for the scale of the scores, and for the norms of query and key."""

    by: ScaleBy = "head"
    """``head``: 1/sqrt(head_dim), where head_dim includes the channels of decoupled positions.
    ``width``: 1/sqrt(d_model), as in the character and vision code of paper 2."""
    identity: IdentityScale = "derived"
    """The factor of the scores if the query or the key contains the layer input. ``derived``: the
    factor that keeps the standard deviation of the baseline's scores; ``published``: 1/2; ``none``:
    1."""
    channels: float | None = field(default=None, metadata=ADDED_LATER)
    """The number n of the scale 1/sqrt(n); ``None`` means the number that ``by`` selects."""
    norm_eps: float = field(default=1e-6, metadata=ADDED_LATER)
    """Epsilon of the norms of query and key, if the variant has such norms."""
    norm_adds_one: bool = field(default=False, metadata=ADDED_LATER)
    """Whether the norms of query and key multiply each channel by 1 + its learned weight."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.channels is not None and not 0 < self.channels < math.inf:
            raise ValueError(
                f"expected a positive and finite number for the score scale, got {self.channels}"
            )
        if not 0 < self.norm_eps < 1:
            raise ValueError(f"expected norm_eps above 0 and below 1, got {self.norm_eps}")


@stored("PositionConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class PositionConfig:
    """Settings of the position terms that a variant may have."""

    plus_features: int = 10
    """Number of channels of the 2D sinusoid in the score term ``+``."""
    plus_per_head: bool = False
    """Whether each head has its own map for ``+`` and for key biases, instead of one per layer."""
    key_positions: int = field(default=1024, metadata=ADDED_LATER)
    """Number of key positions with their own bias. Later positions use the bias of the last one."""
    rotary_base: float = 10_000.0
    """Base of the rotary frequencies."""
    rotary_fraction: float = 0.5
    """The share of the channels of a head that is rotated. The last channels are rotated."""
    value_rope: ValueRope = "counter"
    """The rotation of a value that shares the projection of the key. ``none``: the value is not
    rotated. ``counter``: the value is rotated like the key, and the output is rotated back.
    ``rotated``: the value is rotated like the key (an ablation, not invariant to translation)."""
    relative_distance: int = 128
    """Largest distance with an own entry in the relative bias. Larger distances use that entry."""
    rotates_value: bool = field(default=False, metadata=ADDED_LATER)
    """Whether ``value_rope`` also applies to a value that does not share the key's projection. As a
    control, this separates the effect of rotated values from the effect of shared values."""
    scaling: RotaryScaling | None = field(default=None, metadata=ADDED_LATER)
    """The scaling of the rotary frequencies for longer texts."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(self, "plus_features", "key_positions", "relative_distance")
        if not 0 < self.rotary_base < math.inf:
            raise ValueError(f"expected a positive and finite rotary base, got {self.rotary_base}")
        if not 0 < self.rotary_fraction <= 1:
            raise ValueError(f"expected a rotary fraction in (0, 1], got {self.rotary_fraction}")

    @property
    def plus_row_features(self) -> int:
        """Number of ``+`` channels that depend only on the query and do not affect the softmax."""
        return min(self.plus_features, 2 * math.ceil(self.plus_features / 4))

    @property
    def plus_column_features(self) -> int:
        """Number of ``+`` channels that depend only on the key position j: the bias g(j)."""
        return self.plus_features - self.plus_row_features

    def rotary_dim(self, head_dim: int) -> int:
        """Number of rotated channels of a head, always even."""
        return max(2, 2 * int(head_dim * self.rotary_fraction / 2))


@stored("AttentionConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """An attention layer of any variant. Sizes that do not fit the variant raise ``ValueError``."""

    d_model: int
    """Width of input and output."""
    num_heads: int
    """Number of query heads."""
    variant: Variant = QKV
    """The sharing, heads and score terms; also accepts a label such as ``Q-K=V``."""
    head_dim: int | None = None
    """Channels of a head; ``None`` means ``d_model / num_heads``."""
    causal: bool = False
    """Whether a token sees only itself and the past."""
    bias: bool = True
    """Whether the input projections have biases."""
    out_bias: bool = True
    """Whether the output projection has a bias."""
    dropout: float = 0.0
    """Dropout on attention probabilities."""
    scale: ScaleConfig = ScaleConfig()
    """The scale of the scores."""
    position: PositionConfig = PositionConfig()
    """Settings of the position terms."""
    init: Initialization = TORCH_INIT
    """Initialisation of the projections."""
    kernel: Kernel = "auto"
    """The implementation of the core. ``auto`` chooses by shape. In linear attention, ``explicit``
    computes the scores of all pairs, and ``auto`` sums over chunks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "variant", as_variant(self.variant))
        check_choices(self)
        check_sizes(self, "d_model", "num_heads", "head_dim")
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ValueError(
                f"expected d_model divisible by num_heads, got {self.d_model} and {self.num_heads}"
            )
        check_rates(self, "dropout")
        core = CORES[self.variant.core]
        changes_scores = self.variant.diagonal != "none" or self.variant.soft_cap is not None
        if self.kernel == "sdpa" and (changes_scores or core.name != "softmax"):
            raise ValueError(
                f"expected kernel auto or explicit for {format_label(self.variant)}, got sdpa, "
                "which computes only the plain softmax of the scores"
            )
        if self.causal and not core.has_causal:
            raise ValueError(
                f"expected a bidirectional layer for the core {core.name}, which normalises over "
                "all tokens, got a causal layer"
            )
        if self.variant.decay != "none" and not self.causal:
            raise ValueError("expected a causal layer for a decay, got a bidirectional layer")
        self.variant.kv_heads(self.num_heads)
        if self.variant.identity_roles and self.size_per_head * self.num_heads != self.d_model:
            raise ValueError(
                "expected num_heads * head_dim = d_model if query, key or value is the layer "
                f"input, got {self.num_heads} * {self.size_per_head} and {self.d_model}"
            )
        if self.variant.positions == "rotary" and self.size_per_head < 2:
            raise ValueError(
                f"expected at least 2 channels per head for rotary, got {self.size_per_head}"
            )
        for source in self.variant.projections:
            self.rank(source)
        if self.position.scaling is not None and self.rotated_channels:
            self.position.scaling.check(self.rotated_channels)

    @property
    def size_per_head(self) -> int:
        """Number of channels of a head."""
        return self.d_model // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def num_kv_heads(self) -> int:
        """Number of heads of the key and of the value."""
        return self.variant.kv_heads(self.num_heads)

    def heads(self, source: Source) -> int:
        """Number of heads of a source (a projection or the layer input).

        A latent and the key of decoupled positions have one head. The layer input, and a projection
        that only the query reads, have as many heads as the query. All other projections have as
        many heads as the key.
        """
        has_latent = self.variant.latent is not None and source == self.variant.sharing.key
        if source == KEY_ROPE or has_latent:
            return 1
        if source == QUERY_ROPE:
            return self.num_heads
        only_query = self.variant.sharing.readers(source) == ("query",)
        return self.num_heads if only_query or source == IDENTITY else self.num_kv_heads

    def channels(self, source: Source) -> int:
        """Number of channels per head of a source (a projection or the layer input)."""
        if source in (QUERY_ROPE, KEY_ROPE):
            return self.variant.decoupled or 0
        joint = self.variant.latent if source == self.variant.sharing.key else None
        return self.size_per_head if joint is None else joint

    def width(self, source: Source) -> int:
        """Number of channels of a source (a projection or the layer input) over all heads."""
        return self.heads(source) * self.channels(source)

    @property
    def state_numbers(self) -> int:
        """Number of values in the state of one sequence; 0 if the layer caches tokens instead."""
        if not self.variant.keeps_state:
            return 0
        return self.kv_width * (self.size_per_head + self.variant.is_normalised)

    @property
    def kv_width(self) -> int:
        """Number of channels of the key over all heads; the value has the same number."""
        return self.num_kv_heads * self.size_per_head

    @property
    def rotated_channels(self) -> int:
        """Number of rotated channels of a head, including those of decoupled positions."""
        if self.variant.positions == "rotary":
            return self.position.rotary_dim(self.size_per_head)
        return self.variant.decoupled or 0

    @property
    def turns_by_length(self) -> bool:
        """Whether the rotation of all keys, past keys included, changes when the text grows."""
        scaling = self.position.scaling
        return scaling is not None and scaling.depends_on_length and self.rotated_channels > 0

    @property
    def compared_channels(self) -> int:
        """Number of channels in the dot product of a query and a key."""
        return self.size_per_head + (self.variant.decoupled or 0)

    @property
    def value_rope(self) -> ValueRope:
        """The rotation of the value; ``none`` if it is not rotated."""
        sharing, position = self.variant.sharing, self.position
        reads_key = sharing.value == sharing.key or position.rotates_value
        rotates = self.variant.positions == "rotary" and reads_key
        return position.value_rope if rotates else "none"

    def rank(self, source: Source) -> int | None:
        """Inner width of a low-rank projection; ``None`` for a full-rank projection."""
        rank = self.variant.rank(source)
        if rank is None:
            return None
        size = rank.resolve(self.d_model)
        if size >= self.d_model:
            raise ValueError(
                f"expected a rank below d_model = {self.d_model}, got {size} for {source}"
            )
        return size

    def latent(self, source: Source) -> int | None:
        """Inner width of a low-rank projection if it is below the output width, else ``None``."""
        rank = None if source == IDENTITY else self.rank(source)
        return None if rank is None or rank >= self.width(source) else rank

    @property
    def projection_std(self) -> float:
        """Standard deviation of the initial weights of the input projections."""
        packed = max(1, sum(map(self.width, self.variant.sharing.projections)))
        is_matched = self.init.matched or self.init.scheme == "xavier-matrices"
        return self.init.weight_std(self.d_model, self._baseline_width if is_matched else packed)

    @property
    def _baseline_width(self) -> int:
        """Fan-out in the initialisation of QKV: the width of one matrix, or of all three packed."""
        matrices = 1 if self.init.scheme == "xavier-matrices" else 3
        return matrices * self.num_heads * self.size_per_head

    @property
    def score_scale(self) -> float:
        """The factor of q . k, including the identity correction but not the temperature."""
        usual = self.compared_channels if self.scale.by == "head" else self.d_model
        base = 1.0 / math.sqrt(usual if self.scale.channels is None else self.scale.channels)
        return base * self.identity_correction

    @property
    def content_scale(self) -> float:
        """The factor of q . k, including the temperature but not learned factors."""
        return self.score_scale / self.variant.temperature

    @property
    def identity_correction(self) -> float:
        """The factor that gives the scores of an identity query or key the scale of the baseline.

        For weights of standard deviation s, the factor is s sqrt(d); the paper divides scores by
        its inverse. Under packed Xavier initialisation, the initial weights of the learned query or
        key differ from those of the baseline. The factor also corrects this difference.

        Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", section 5.
        """
        if self.scale.identity == "none" or not compares_identity(self.variant):
            return 1.0
        if self.scale.identity == "published":
            return PUBLISHED_IDENTITY_SCALE
        baseline_std = self.init.weight_std(self.d_model, self._baseline_width)
        learned = self.projection_std * math.sqrt(self.d_model)
        return correct_identity(self.variant, learned, baseline_std**2 * self.d_model)


def compares_identity(variant: Variant) -> bool:
    """Return whether the query or the key is the layer input, or a sum with the layer input."""
    return not {"query", "key"}.isdisjoint(variant.identity_roles)


def correct_identity(variant: Variant, learned: float, baseline: float) -> float:
    """Return the factor that gives scores of an identity query or key the baseline's scale.

    The layer input is assumed to have root mean square (RMS) 1. ``learned`` is then the RMS of a
    learned query or key, and ``baseline`` is the squared RMS of query and key in the baseline.
    """
    sources = (variant.sharing.query, variant.sharing.key)
    query, key = (1.0 if source == IDENTITY else learned for source in sources)
    if "residual" in variant.query_form:
        query = _residual_rms(variant.query_form, learned)
    return baseline / (query * key)


@functools.cache
def _residual_rms(form: str, deviation: float) -> float:
    """Return the RMS of x + z or x + gelu(z), for x of RMS 1 and z ~ N(0, deviation^2)."""
    if form == "residual":
        return math.sqrt(1.0 + deviation**2)
    steps, span = 4000, 10.0
    total = 0.0
    for index in range(steps + 1):
        z = -span + 2 * span * index / steps
        gelu = deviation * z * 0.5 * (1 + math.erf(deviation * z / math.sqrt(2)))
        total += gelu**2 * math.exp(-z * z / 2)
    return math.sqrt(1.0 + total * (2 * span / steps) / math.sqrt(2 * math.pi))
