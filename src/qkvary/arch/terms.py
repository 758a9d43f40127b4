"""The score terms of a variant by name: what each is called, means and is written as.

``nn.terms`` has the class of the same name, which computes it, and ``costs.terms`` its costs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

ScorePosition = Literal["none", "relative", "alibi", "rotary"]
DiagonalNorm = Literal["none", "mean", "norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms:
    """The fields of a variant that say what its scores are, beside products of query and key."""

    plus: bool = False
    """The papers' ``+``: scores become tau a_ij + g(j), from a fixed 2D sinusoid."""
    positions: ScorePosition = "none"
    """A joint (i, j) position term in the scores."""
    window: int | None = None
    """Keys this many tokens or more behind the query (bidirectional: away from it) are masked."""
    diagonal: DiagonalNorm = "none"
    """Divide the diagonal of K K^T by its mean or by its norm over the tokens that a query sees
    (paper 1, appendix A.2)."""
    temperature: float = 1.0
    """Scores are divided by this before the softmax."""

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
    """That field."""
    words: str
    """Its meaning, as a clause of a sentence."""
    scores: str = "{scores}"
    """The scores with it, as an equation."""
    role: str | None = None
    """Query and key with it, as an equation, where it changes them."""
    is_symmetric: bool = True
    """Whether scores that are equal for (i, j) and (j, i) stay so."""

    def is_in(self, variant: ScoreTerms) -> bool:
        """Return whether a variant has the term."""
        value = getattr(variant, self.field)
        return value == self.name or (self.name == self.field and value != DEFAULTS[self.field])


@dataclass(frozen=True, slots=True)
class Option:
    """The form of a field in labels."""

    form: str
    """The option with its value, behind ``@``."""
    pattern: str
    """The same as a regular expression, whose group is the value."""
    help: str
    """The choices, for messages."""
    read: Callable[[str], Any] = str
    """The value of that text."""


DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(ScoreTerms)}
"""The value of each field without which its term does not exist."""

TERMS: tuple[TermEntry, ...] = (
    TermEntry(
        "rotary", "positions", "query and key are rotated by their positions", role="R({role})"
    ),
    TermEntry(
        "diagonal",
        "diagonal",
        "the diagonal of the scores is divided by its {value}",
        "D({scores})",
    ),
    TermEntry(
        "plus",
        "plus",
        "scores become tau a_ij + g(j): a temperature and a bias per key position",
        "τ {scores} + 1 gᵀ",
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
)
"""Every term, in the order of application."""

_POSITIONS = get_args(ScorePosition)[1:]

OPTIONS: Mapping[str, Option] = {
    "positions": Option("{}", f"({'|'.join(_POSITIONS)})", ", ".join(_POSITIONS)),
    "window": Option("w{}", r"w(\d+)", "wN (window)", int),
    "diagonal": Option("diag-{}", "diag-(mean|norm)", "diag-mean, diag-norm"),
    "temperature": Option("t{!r}", r"t(\d*\.?\d+(?:e[+-]?\d+)?)", "tX (temperature)", float),
}
"""The options of labels by field, in their order."""
