"""The score terms, role terms (of query, key and value) and cores that a variant can have.

``nn.terms`` computes score terms, ``nn.projections`` role terms, and ``nn.kernels`` cores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

ScorePosition = Literal["none", "relative", "alibi", "rotary"]
DiagonalNorm = Literal["none", "mean", "norm", "mean-unscaled", "norm-unscaled"]
Core = Literal[
    "softmax", "sima", "soft", "linear", "linear-relu", "linear-softmax", "linear-identity"
]
Decay = Literal["none", "learned", "fixed"]
HeadNorm = Literal["none", "qk-norm", "qk-norm-wide"]
Normaliser = Literal["sum", "undecayed-sum", "unnormalised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTerms:
    """The fields of a variant that change query, key or value before scores are computed."""

    decoupled: int | None = None
    """Number of channels of decoupled rotary positions. Each head has a second query. It is
    rotated, and all heads share one rotated key. Their products are added to the scores."""
    latent: int | None = None
    """Width of one shared latent. Two matrices compute the key and the value from it."""
    kv_norm: bool = False
    """Whether the tensor that key and value share is normalised (RMSNorm over all KV heads)."""
    head_norm: HeadNorm = "none"
    """RMSNorm of query and key, with separate gains, before any rotation. ``qk-norm``: over each
    head, with one gain for all heads. ``qk-norm-wide``: over all heads together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms(RoleTerms):
    """The fields of a variant that determine its scores, including rotations of query and key."""

    plus: bool = False
    """The papers' ``+``: scores become tau a_ij + g(j), where the learned weights of a 2D sinusoid
    determine tau and g."""
    key_bias: bool = False
    """Scores become tau a_ij + b(j), where tau and b are learned directly."""
    positions: ScorePosition = "none"
    """A position term in the scores that depends on both positions, i and j."""
    soft_cap: float | None = None
    """The soft cap c: scores become c tanh(score / c). ``None`` for no cap."""
    window: int | None = None
    """Masks keys that are this many tokens or more away from the query."""
    stride: int | None = None
    """Masks keys whose distance is not a multiple of this, except those in the window."""
    diagonal: DiagonalNorm = "none"
    """Divides the diagonal of K K^T by its mean or norm over the tokens that a query sees (paper 1,
    appendix A.2); ``unscaled`` divides before the score scale is applied."""
    temperature: float = 1.0
    """Scores are divided by this before the softmax."""
    core: Core = "softmax"
    """The function that turns scores into weights (:data:`CORES`)."""
    decay: Decay = "none"
    """Whether weights of linear attention decay with distance, by a factor per KV head."""
    normaliser: Normaliser = "sum"
    """The divisor of the weights of linear attention. ``sum``: their sum. ``undecayed-sum``: their
    sum without the decay, as in paper 1, appendix A.1, where only the state decays.
    ``unnormalised``: no divisor."""
    own: str | None = None
    """The name of a score term, core or layer from a user's file (:data:`OWN`)."""

    @property
    def has_positions(self) -> bool:
        """Whether the scores have a term that depends on both positions, i and j."""
        return self.positions != "none" or self.decoupled is not None

    @property
    def keeps_state(self) -> bool:
        """Whether decoding keeps a state of fixed size instead of a cache entry for every token."""
        return CORES[self.core].keeps_state

    @property
    def is_normalised(self) -> bool:
        """Whether the weights of linear attention are divided by a sum."""
        return "normaliser" in CORES[self.core].fields and self.normaliser != "unnormalised"

    @property
    def reach(self) -> int | None:
        """Number of tokens after which a key is hidden for good; ``None`` if it stays visible."""
        if self.keeps_state:
            return 1
        return self.window if self.stride is None else None

    @property
    def terms(self) -> tuple["TermEntry", ...]:
        """The table entries of the variant's terms, in the order of their application."""
        own = () if self.own is None else (OWN[self.own].entry,)
        return (*(term for term in TERMS if term.is_in(self)), *own)

    @property
    def core_name(self) -> str:
        """The name of the core, or of a user's class that replaces or wraps the core."""
        return self.own or self.core


@dataclass(frozen=True, slots=True)
class TermEntry:
    """A term that changes query, key, value or scores.

    In the texts of a term, ``{value}`` stands for the value of the term's field.
    """

    name: str
    """The field of :class:`ScoreTerms` that switches the term on, or a choice of that field."""
    field: str
    words: str
    """The meaning of the term, as a clause of a sentence."""
    scores: str = "{scores}"
    """The equation of the scores with the term; ``{scores}`` stands for the scores without it."""
    role: str = "{role}"
    """The equation of a query, key or value with the term. ``{role}`` stands for the equation
    without the term, ``{letter}`` for q, k or v."""
    letters: str = "qk"
    """The roles that the term changes, as letters of ``qkv``."""
    where: str = ""
    """Definitions of the symbols in the equations."""
    is_symmetric: bool = True
    """Whether symmetric scores, which are equal for (i, j) and (j, i), stay symmetric."""
    before_scale: bool = False
    """Whether the term applies to the products of query and key before they are scaled."""
    values: tuple[str, ...] = ()
    """The values of the field that switch the term on. If empty, the value ``name`` does so; if
    ``name`` is the name of the field, every value except the default does."""

    def is_in(self, variant: ScoreTerms) -> bool:
        """Return whether a variant has this term."""
        value = getattr(variant, self.field)
        if self.values:
            return value in self.values
        return value == self.name or (self.name == self.field and value != DEFAULTS[self.field])

    def write(self, text: str, variant: ScoreTerms, scores: str = "") -> str:
        """Fill in the placeholders of one of the term's texts."""
        value = getattr(variant, self.field)
        return text.format(value=value.partition("-")[0] if self.values else value, scores=scores)


@dataclass(frozen=True, slots=True)
class OwnPart:
    """A score term, core or layer that a user's file defines."""

    name: str
    """The name in labels, after ``@own-``."""
    words: str
    """The meaning, as a clause of a sentence."""
    made: type[Any]

    @property
    def entry(self) -> TermEntry:
        """The part as a :class:`TermEntry`."""
        scores = self.name + "({scores})"
        return TermEntry(self.name, "own", self.words, scores, is_symmetric=False)


OWN: dict[str, OwnPart] = {}
"""The parts that users' files have registered in this process, by name (see ``nn.own``)."""


@dataclass(frozen=True, slots=True)
class CoreEntry:
    """A core is the rule by which the scores s q k^T become weights of the values."""

    name: Core
    """The value of :attr:`ScoreTerms.core` that selects the core."""
    words: str
    """The meaning of the core, as a clause of a sentence. It is empty for the softmax."""
    equation: str
    """The equation of the weights. ``{scores}`` stands for the scores, ``{seen}`` for the visible
    pairs, ``{query}`` and ``{key}`` for query and key in parentheses, and ``{bare_query}`` and
    ``{bare_key}`` for these without parentheses."""
    products: str = ""
    """The equation of the scores without terms, if it is not s q kᵀ."""
    fields: tuple[str, ...] = ()
    """The fields of :class:`ScoreTerms` that may be set with this core."""
    has_causal: bool = True
    """Whether causal attention can use this core."""
    keeps_state: bool = False
    """Whether a state of fixed size holds everything that later tokens need from earlier ones."""


DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(ScoreTerms)}
"""The default of each field. A field with its default means that the variant lacks the term."""

_DIAGONAL = (
    "diag-{value} divides each diagonal entry (i, i) by the {value} of the diagonal entries "
    "(j, j), taken over all tokens j that token i can see"
)
TERMS: tuple[TermEntry, ...] = (
    # Terms that change query, key or value.
    TermEntry(
        "kv_norm",
        "kv_norm",
        "the tensor that key and value share is normalised over all KV heads",
        role="N({role})",
        letters="kv",
        where=(
            "N divides each token by the root mean square of all its KV heads, √(mean c² + 1e-6), "
            "and multiplies each channel by a learned gain"
        ),
        is_symmetric=False,
    ),
    TermEntry(
        "latent",
        "latent",
        "key and value are both computed from one latent of {value} channels",
        role="{role} B{letter}",
        letters="kv",
        where="x Wk is the latent of {value} channels, which all heads share",
        is_symmetric=False,
    ),
    TermEntry(
        "qk-norm",
        "head_norm",
        "each head of query and key is normalised",
        role="N{letter}({role})",
        where=(
            "Nq and Nk divide each token of a head by its root mean square, √(mean c² + 1e-6), and "
            "multiply each channel by a learned gain; query and key have separate gains, and all "
            "heads use the same gains"
        ),
    ),
    TermEntry(
        "qk-norm-wide",
        "head_norm",
        "query and key are each normalised over all heads",
        role="N{letter}({role})",
        where=(
            "Nq and Nk divide each token by the root mean square of all its heads, "
            "√(mean c² + 1e-6), and multiply each channel of each head by a learned gain; query "
            "and key have separate gains"
        ),
    ),
    TermEntry(
        "rotary",
        "positions",
        "query and key are rotated by their positions",
        role="R({role})",
        where=(
            "R rotates the last r channels of a head, half of them by default: channels k and "
            "k + r/2 of these are a pair, rotated by p·10000^(-2k/r) at position p; "
            "R⁻¹ rotates back"
        ),
    ),
    TermEntry(
        "decoupled",
        "decoupled",
        "{value} rotated channels of each query are scored against one rotated key that all heads "
        "share",
        "({scores} + R(x Wqr) R(x Wkr)ᵀ)",
        where=(
            "R rotates all r = {value} channels: channels k and k + r/2 are a pair, rotated by "
            "p·10000^(-2k/r) at position p; R(x Wkr) is a single key head that all query "
            "heads share"
        ),
        is_symmetric=False,
        before_scale=True,
    ),
    # Terms that change scores or weights.
    TermEntry(
        "diagonal",
        "diagonal",
        "the diagonal of the scores is divided by its {value}",
        "diag-{value}({scores})",
        where=_DIAGONAL,
        values=("mean", "norm"),
    ),
    TermEntry(
        "unscaled-diagonal",
        "diagonal",
        "the diagonal of K Kᵀ is divided by its {value} before the score scale is applied",
        "diag-{value}({scores})",
        where=_DIAGONAL,
        before_scale=True,
        values=("mean-unscaled", "norm-unscaled"),
    ),
    TermEntry(
        "soft_cap",
        "soft_cap",
        "a tanh keeps scores within {value:g}",
        "{value:g} tanh({scores} / {value:g})",
    ),
    TermEntry(
        "plus",
        "plus",
        "scores become tau a_ij + g(j): a temperature tau, and a bias g(j) per key position",
        "τ {scores} + 1 gᵀ",
        where=(
            "τ = Σ w_c over the m = 10 learned weights w; g(j) = w_6 sin j + w_7 cos j + "
            "w_8 sin(j·10000^(-1/3)) + w_9 cos(j·10000^(-1/3)) at position j"
        ),
        is_symmetric=False,
    ),
    TermEntry(
        "key_bias",
        "key_bias",
        "scores become tau a_ij + b(j): a temperature tau, and a table with one bias b(j) per key "
        "position",
        "τ {scores} + 1 bᵀ",
        where="τ is learned; b(j) is a learned table with one entry per position j",
        is_symmetric=False,
    ),
    TermEntry(
        "relative",
        "positions",
        "a learned bias per head and distance i-j is added to the scores",
        "{scores} + b(i-j)",
        where=(
            "b(i-j) comes from a learned table, one for each head; distances beyond 128 use the "
            "entry for distance 128"
        ),
        is_symmetric=False,
    ),
    TermEntry(
        "alibi",
        "positions",
        "a penalty proportional to the distance |i-j| is added to the scores",
        "{scores} - m |i-j|",
        where="m = 2^(-8h/n) for head h of n, counted from 1",
    ),
    TermEntry(
        "temperature", "temperature", "softmax temperature {value:g}", "({scores}) / {value:g}"
    ),
    TermEntry(
        "decay",
        "decay",
        "attention weights decay with distance, and each KV head has a {value} decay factor",
        "{scores} ⊙ λ^(i-j)",
        where=(
            "λ = 1 - 2^(-4-h) for KV head h, counted from 1, if the decay is fixed; "
            "λ = 1/(1 + e^(-w)) if the decay is learned, where w is the head's learned weight"
        ),
        values=("learned", "fixed"),
    ),
)
"""Every term, in the order in which they are applied."""

_ANY = (
    *("plus", "key_bias", "positions", "decoupled"),
    *("window", "stride", "diagonal", "soft_cap", "temperature"),
)


def _linear(name: Core, words: str, features: str, *fields: str) -> CoreEntry:
    return CoreEntry(
        name,
        f"no softmax: weights are products of {words}",
        "[{scores}]",
        products="{} {}ᵀ".format(*(features.replace("role", role) for role in ("query", "key"))),
        fields=("decay", *fields),
        keeps_state=True,
    )


CORES: Mapping[str, CoreEntry] = {
    core.name: core
    for core in (
        CoreEntry("softmax", "", "softmax({scores}{seen})", fields=_ANY),
        CoreEntry(
            "sima",
            "no softmax: each channel of query and key is divided by its l1 norm over the tokens",
            "({query} / ‖{bare_query}‖₁) ({key} / ‖{bare_key}‖₁)ᵀ",
            has_causal=False,
        ),
        CoreEntry(
            "soft",
            "no softmax: weights are the Gaussian kernel of query and key, not normalised",
            "exp({scores}{seen})",
            products="-s |{query}ᵢ - {key}ⱼ|² / 2",
            fields=("positions", "window", "stride", "temperature"),
        ),
        _linear("linear", "1 + elu of query and key", "(1 + elu({bare_role}))", "normaliser"),
        _linear("linear-relu", "relu of query and key", "relu({bare_role})", "normaliser"),
        _linear(
            "linear-softmax",
            "the softmax over the channels of query and key",
            "channel-softmax({bare_role})",
            "normaliser",
        ),
        # Sums of products of any sign may be zero, so nothing is divided by them.
        _linear("linear-identity", "query and key, not normalised", "{role}"),
    )
}
"""Every core by name. ``sima``: Koohpayegani and Pirsiavash 2024, "SimA: Simple Softmax-free
Attention for Vision Transformers". ``soft``: Lu et al. 2021, "SOFT: Softmax-free Transformer with
Linear Complexity", with the exact kernel instead of its Nystroem approximation. SOFT itself ties
query and key, so the published form is ``Q=K-V@soft``. ``linear``: Katharopoulos et al. 2020,
"Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention"; the other linear
cores differ in their feature maps."""

NORMALISERS: Mapping[Normaliser, tuple[str, str]] = {
    "sum": ("weights are divided by their sum", "{scores} / Σⱼ"),
    "undecayed-sum": (
        "weights are divided by the sum that they would have without decay",
        "{scores} / Σⱼ {products}",
    ),
    "unnormalised": ("weights are not divided by their sum", "s {scores}"),
}
"""The meaning of each normaliser in words, and the equation of the normalised weights."""

OPTIONS: Mapping[str, tuple[str, type[Any] | tuple[str, ...]]] = {
    "positions": ("", get_args(ScorePosition)[1:]),
    "decoupled": ("decoupled-", int),
    "latent": ("latent-", int),
    "kv_norm": ("kv-norm", bool),
    "head_norm": ("", get_args(HeadNorm)[1:]),
    "soft_cap": ("cap", float),
    "window": ("w", int),
    "stride": ("s", int),
    "diagonal": ("diag-", get_args(DiagonalNorm)[1:]),
    "temperature": ("t", float),
    "core": ("", get_args(Core)[1:]),
    "decay": ("decay-", get_args(Decay)[1:]),
    "normaliser": ("", get_args(Normaliser)[1:]),
    "key_bias": ("key-bias", bool),
    "own": ("own-", str),
}
"""The options of labels by field, in the order in which labels list them. Each option has a prefix,
and the possible words or the type of its value. A ``bool`` is a prefix without a value."""
