"""The score terms of a variant by name, and its core, in words and in equations.

``nn.terms`` has the class of a term's name, which computes it, and ``costs.terms`` its costs; of a
core these are in ``nn.kernels`` and ``costs.terms``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

ScorePosition = Literal["none", "relative", "alibi", "rotary"]
DiagonalNorm = Literal["none", "mean", "norm", "mean-unscaled", "norm-unscaled"]
Core = Literal[
    "softmax", "sima", "soft", "linear", "linear-relu", "linear-softmax", "linear-identity"
]
Decay = Literal["none", "learned", "fixed"]
Normaliser = Literal["sum", "undecayed-sum", "unnormalised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTerms:
    """The fields of a variant that have a meaning in linear attention alone."""

    decay: Decay = "none"
    """A factor per KV head and token of distance in the weights of linear attention."""
    normaliser: Normaliser = "sum"
    """The divisor of the weights of linear attention: their sum, their sum without the decay (paper
    1, appendix A.1, which decays the state alone), or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms(LinearTerms):
    """The fields of a variant that determine its scores, apart from query and key."""

    plus: bool = False
    """The papers' ``+``: scores become tau a_ij + g(j), from a fixed 2D sinusoid."""
    key_bias: bool = False
    """The function of ``+`` with its own parameters: scores become tau a_ij + b(j)."""
    positions: ScorePosition = "none"
    """A joint (i, j) position term in the scores."""
    decoupled: int | None = None
    """Channels of decoupled rotary positions: a rotated query of each head, from a projection of
    its own, meets one rotated key that all heads share, and adds to the products."""
    latent: int | None = None
    """Width of the one latent that a shared key and value are both made of, by a matrix each."""
    kv_norm: bool = False
    """Whether the tensor that key and value share is normalised (RMSNorm over all KV heads)."""
    window: int | None = None
    """Keys this many tokens or more behind the query (bidirectional: away from it) are masked."""
    stride: int | None = None
    """Keys whose distance this number does not divide are masked, except those in the window."""
    diagonal: DiagonalNorm = "none"
    """Divide the diagonal of K K^T by its mean or by its norm over the tokens that a query sees
    (paper 1, appendix A.2). ``unscaled`` divides before the score scale is applied, as the
    appendix's listing does; the others divide scaled scores."""
    temperature: float = 1.0
    """Scores are divided by this before the softmax."""
    core: Core = "softmax"
    """The function that turns scores into weights (:data:`CORES`)."""

    @property
    def has_positions(self) -> bool:
        """Whether the scores depend on joint positions (i, j)."""
        return self.positions != "none" or self.decoupled is not None

    @property
    def keeps_state(self) -> bool:
        """Whether decoding keeps a state of fixed size instead of an entry of every token."""
        return CORES[self.core].keeps_state

    @property
    def is_normalised(self) -> bool:
        """Whether the weights of linear attention are divided by a sum."""
        return "normaliser" in CORES[self.core].fields and self.normaliser != "unnormalised"

    @property
    def reach(self) -> int | None:
        """Tokens after which a key is never seen again, ``None`` if there is always a later one."""
        if self.keeps_state:
            return 1
        return self.window if self.stride is None else None

    @property
    def terms(self) -> tuple["TermEntry", ...]:
        """The entries of the terms that the scores have, in the order of their application."""
        return tuple(term for term in TERMS if term.is_in(self))


@dataclass(frozen=True, slots=True)
class TermEntry:
    """A score term. In words and equations, ``{value}`` is the value of its field."""

    name: str
    """The field of :class:`ScoreTerms` that switches it on, or one of the field's choices."""
    field: str
    """The field of :class:`ScoreTerms` that has the term."""
    words: str
    """Its meaning, as a clause of a sentence."""
    scores: str = "{scores}"
    """The scores with it, as an equation."""
    role: str | None = None
    """Query and key with it, as an equation, where it changes them."""
    key_value: str | None = None
    """The equation of key or value with it, from ``{source}`` and the role's letter."""
    is_symmetric: bool = True
    """Whether scores that are equal for (i, j) and (j, i) stay so."""
    before_scale: bool = False
    """Whether it takes the products of query and key before their scale."""
    values: tuple[str, ...] = ()
    """The choices of the field, where it is the term of some of them."""

    def is_in(self, variant: ScoreTerms) -> bool:
        """Return whether a variant has the term."""
        value = getattr(variant, self.field)
        if self.values:
            return value in self.values
        return value == self.name or (self.name == self.field and value != DEFAULTS[self.field])

    def describe(self, variant: ScoreTerms) -> str:
        """Return its meaning in a variant that has it."""
        value = getattr(variant, self.field)
        return self.words.format(value=value.partition("-")[0] if self.values else value)


@dataclass(frozen=True, slots=True)
class CoreEntry:
    """A core: how the scores s q k^T become weights of the values."""

    name: Core
    """The value of :attr:`ScoreTerms.core`."""
    words: str
    """Its meaning, as a clause of a sentence; empty for the softmax."""
    equation: str
    """The weights, as an equation of ``{scores}``, or of ``{query}`` and ``{key}``."""
    products: str = ""
    """The scores without terms, where they are not s q kᵀ, of ``{query}`` and ``{key}``."""
    fields: tuple[str, ...] = ()
    """The fields of :class:`ScoreTerms` that have a meaning with it."""
    has_causal: bool = True
    """Whether tokens that see only the past can have it."""
    keeps_state: bool = False
    """Whether a sum of fixed size holds everything that later tokens need of earlier ones."""


@dataclass(frozen=True, slots=True)
class Option:
    """The form of a field in labels."""

    form: str
    """The option with its value, behind ``@``."""
    pattern: str
    """A regular expression for the option, whose group is the value."""
    help: str
    """The choices, for messages."""
    read: Callable[[str], Any] = str
    """The value of that text."""


DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(ScoreTerms)}
"""The value of each field without which its term does not exist."""

TERMS: tuple[TermEntry, ...] = (
    TermEntry(
        "kv_norm",
        "kv_norm",
        "what key and value share is normalised over all KV heads",
        key_value="N({source})",
        is_symmetric=False,
    ),
    TermEntry(
        "latent",
        "latent",
        "key and value are each made of a latent of {value} channels",
        key_value="{source} B{letter}",
        is_symmetric=False,
    ),
    TermEntry(
        "rotary", "positions", "query and key are rotated by their positions", role="R({role})"
    ),
    TermEntry(
        "decoupled",
        "decoupled",
        "{value} rotated channels of each query meet one rotated key that all heads share",
        "[{scores} + R(x Wqr) R(x Wkr)ᵀ]",
        is_symmetric=False,
        before_scale=True,
    ),
    TermEntry(
        "diagonal",
        "diagonal",
        "the diagonal of the scores is divided by its {value}",
        "D({scores})",
        values=("mean", "norm"),
    ),
    TermEntry(
        "unscaled-diagonal",
        "diagonal",
        "the diagonal of K Kᵀ is divided by its {value} before the score scale is applied",
        "D({scores})",
        before_scale=True,
        values=("mean-unscaled", "norm-unscaled"),
    ),
    TermEntry(
        "plus",
        "plus",
        "scores become tau a_ij + g(j): a temperature and a bias per key position",
        "τ {scores} + 1 gᵀ",
        is_symmetric=False,
    ),
    TermEntry(
        "key_bias",
        "key_bias",
        "scores become tau a_ij + b(j): a temperature and a table of biases of key positions",
        "τ {scores} + 1 bᵀ",
        is_symmetric=False,
    ),
    TermEntry(
        "relative",
        "positions",
        "a learned bias per head and distance i-j is added to the scores",
        "{scores} + b(i-j)",
        is_symmetric=False,
    ),
    TermEntry(
        "alibi",
        "positions",
        "a penalty proportional to the distance |i-j| is added to the scores",
        "{scores} - m |i-j|",
    ),
    TermEntry(
        "temperature", "temperature", "softmax temperature {value:g}", "({scores}) / {value:g}"
    ),
    TermEntry(
        "decay",
        "decay",
        "weights decay with the distance, by a {value} factor per KV head",
        "{scores} λ^(i-j)",
        values=("learned", "fixed"),
    ),
)
"""Every term, in the order of application."""

_ANY = (
    *("plus", "key_bias", "positions", "decoupled"),
    *("window", "stride", "diagonal", "temperature"),
)


def _linear(name: Core, words: str, features: str, *fields: str) -> CoreEntry:
    return CoreEntry(
        name,
        f"no softmax: weights are products of {words}",
        "[{scores}]",
        products=f"{features.format('{query}')} {features.format('{key}')}ᵀ",
        fields=("decay", *fields),
        keeps_state=True,
    )


CORES: Mapping[str, CoreEntry] = {
    core.name: core
    for core in (
        CoreEntry("softmax", "", "softmax({scores})", fields=_ANY),
        CoreEntry(
            "sima",
            "no softmax: each channel of query and key is divided by its l1 norm over the tokens",
            "({query} / ‖{query}‖₁) ({key} / ‖{key}‖₁)ᵀ",
            has_causal=False,
        ),
        CoreEntry(
            "soft",
            "no softmax: weights are the Gaussian kernel of query and key, not normalised",
            "exp({scores})",
            products="-s |{query}ᵢ - {key}ⱼ|² / 2",
            fields=("positions", "window", "stride", "temperature"),
        ),
        _linear("linear", "1 + elu of query and key", "(1 + elu {})", "normaliser"),
        _linear("linear-relu", "relu of query and key", "(relu {})", "normaliser"),
        _linear(
            "linear-softmax",
            "the softmax over the channels of query and key",
            "(softmax {})",
            "normaliser",
        ),
        # Sums of products of any sign may be zero, so that nothing divides by them.
        _linear("linear-identity", "query and key, not normalised", "{}"),
    )
}
"""Every core by name.

``sima``: Koohpayegani and Pirsiavash 2024, "SimA: Simple Softmax-free Attention for Vision
Transformers". ``soft``: Lu et al. 2021, "SOFT: Softmax-free Transformer with Linear Complexity",
with the exact kernel in place of its Nystroem approximation. SOFT ties query and key by itself:
published, it is ``Q=K-V@soft``. ``linear``: Katharopoulos et al. 2020, "Transformers are RNNs:
Fast Autoregressive Transformers with Linear Attention", with other feature maps of its kind.
"""

NORMALISERS: Mapping[Normaliser, tuple[str, str]] = {
    "sum": ("weights are divided by their sum", "{scores} / Σⱼ"),
    "undecayed-sum": (
        "weights are divided by their sum without the decay",
        "{scores} / Σⱼ {products}",
    ),
    "unnormalised": ("weights are not divided by their sum", "s {scores}"),
}
"""The meaning of each normaliser in words, and the weights with it as an equation."""

_POSITIONS = get_args(ScorePosition)[1:]

OPTIONS: Mapping[str, Option] = {
    "positions": Option("{}", f"({'|'.join(_POSITIONS)})", ", ".join(_POSITIONS)),
    "decoupled": Option("decoupled-{}", r"decoupled-(\d+)", "decoupled-N (shared rotary key)", int),
    "latent": Option("latent-{}", r"latent-(\d+)", "latent-N (of key and value)", int),
    "kv_norm": Option("kv-norm", "(kv-norm)", "kv-norm", bool),
    "window": Option("w{}", r"w(\d+)", "wN (window)", int),
    "stride": Option("s{}", r"s(\d+)", "sN (stride)", int),
    "diagonal": Option(
        "diag-{}",
        "diag-((?:mean|norm)(?:-unscaled)?)",
        "diag-mean, diag-norm, diag-mean-unscaled, diag-norm-unscaled",
    ),
    "temperature": Option("t{!r}", r"t(\d*\.?\d+(?:e[+-]?\d+)?)", "tX (temperature)", float),
    "core": Option(
        "{}",
        f"({'|'.join(name for name in CORES if name != 'softmax')})",
        ", ".join(name for name in CORES if name != "softmax"),
    ),
    "decay": Option("decay-{}", "decay-(learned|fixed)", "decay-learned, decay-fixed"),
    "normaliser": Option("{}", "(undecayed-sum|unnormalised)", "undecayed-sum, unnormalised"),
    "key_bias": Option("key-bias", "(key-bias)", "key-bias", bool),
}
"""The options of labels by field, in their order."""
