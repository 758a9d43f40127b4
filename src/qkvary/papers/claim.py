"""Reads the claims of the papers, each with its judges: the numbers and tests that decide it.

Each document's folder has a file ``claims.json`` with paraphrased claims. The module
``claim_verdicts`` derives the verdicts. Never imports torch, numpy or scipy, and reads no study.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from qkvary.papers.catalog import claims_file

SCHEMA_VERSION = 1

ClaimKind = Literal["arithmetic", "measured", "prediction", "recommendation"]
KINDS: tuple[ClaimKind, ...] = get_args(ClaimKind)
Shown = Literal["claim", "opposite", "neither"]
"""``neither`` for a test or figure that is listed with a claim but does not decide it."""
Quantifier = Literal["", "some", "every"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRange:
    """The range in which a difference or figure lies if the claim is true."""

    above: float = -math.inf
    below: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ByFigure:
    """Judges a claim by recomputing a published number."""

    table: str
    """The published table that has the figure."""
    row: str
    column: str
    literal: bool = False
    """Whether the claim says what is counted. If it does, a figure that is right only under another
    convention refutes the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByComparison:
    """Judges a claim by a published number, or by the difference between two published numbers.

    Published numbers are known only up to rounding.
    """

    first: ByFigure
    second: ByFigure | None
    """The figure to subtract from the first; None to judge the first alone."""
    claimed: ClaimedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTest:
    """Judges a claim by an exact statement that a test of this project checks."""

    node: str
    """The test as pytest names it, without parameters."""
    says: str
    """What the test proves, as a sentence."""
    shows: Shown = "claim"
    condition: str = ""
    """When it holds: the end of a sentence that begins "It holds" or "It does not hold"; empty if
    always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByStudy:
    """Judges a claim by a figure from a study of this project.

    The figure may be the difference between two variants in the study.
    """

    study: str
    table: str
    """The table of the report, named after the task or setting."""
    variant: str
    reference: str
    """The variant to subtract; empty if the figure is not a difference."""
    claimed: ClaimedRange
    unit: str
    """The unit that is written after the figure."""
    quantity: str = ""
    """The metric, ``steps_to_solve``, or a column; empty for the metric of the table."""
    shows: Literal["claim", "neither"] = "claim"
    condition: str = ""
    """When it holds: the end of a sentence that begins "It holds" or "It does not hold"; empty if
    always."""

    @property
    def tasks(self) -> frozenset[str]:
        """The tasks and settings that the name of the table lists."""
        return frozenset(self.table.removeprefix("average of ").split(", "))

    @property
    def key(self) -> str:
        """The key of the figure in ``kept_figures.json``."""
        pair = f"{self.variant} | {self.reference}"
        return f"{self.study} | {self.table} | {pair} | {self.quantity}"


Judge = ByFigure | ByComparison | ByTest | ByStudy


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim of a document."""

    name: str
    """Document and number, such as ``poster-12``."""
    place: str
    """The section, table or caption that makes the claim."""
    text: str
    """The claim in this project's words."""
    kind: ClaimKind
    judges: tuple[Judge, ...]
    quantifier: Quantifier
    """How many judges must agree: ``some`` if the claim says "sometimes", ``every`` if the claim
    names its settings or variants. If it is empty, a disagreement between judges becomes a
    condition of the verdict."""
    parameters: int | None
    """Parameters of the smallest networks that the claim is about; None for networks of any
    size."""
    main: bool
    """Whether the claim is in an abstract or conclusion, or a main statement of an article."""
    same_as: str
    """The name of another claim with the same meaning; empty for none."""
    note: str
    """How the claim is read, or the limits of its judges, in sentences; empty for none."""
    untested: str
    """The part of the claim that no judge covers, as a noun or a clause; empty if none is left."""
    needs: str
    """What a test would require, as a sentence; empty for a claim with judges."""
    words: str
    """Search terms from the document that the claim itself does not contain; not shown."""

    @property
    def document(self) -> str:
        """The name of the claim's document."""
        return self.name.rpartition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDocument:
    """A document with its claims, in the document's order."""

    name: str
    title: str
    source: str
    claims: tuple[Claim, ...]


@functools.cache
def load_document(name: str) -> ClaimedDocument:
    """Read the claims of one document."""
    return decode_document(claims_file(name), name)


def decode_document(data: Mapping[str, Any], name: str) -> ClaimedDocument:
    """Build the claims of a document from the contents of its file."""
    if data.get("schema_version") != SCHEMA_VERSION or data.get("document") != name:
        raise ValueError(
            f"claims of {name!r}: expected schema_version {SCHEMA_VERSION} and its own name, "
            f"got {data.get('schema_version')!r} and {data.get('document')!r}"
        )
    size = data.get("parameters")
    entries = cast("list[dict[str, Any]]", data["claims"])
    claims = tuple(_claim(name, {"parameters": size, **entry}) for entry in entries)
    return ClaimedDocument(name=name, title=data["title"], source=data["source"], claims=claims)


def _claim(document: str, entry: Mapping[str, Any]) -> Claim:
    name = f"{document}-{entry['number']}"
    if entry["kind"] not in KINDS:
        raise ValueError(f"claim {name}: expected one of the kinds {KINDS}, got {entry['kind']!r}")
    quantifier = entry.get("quantifier", "")
    if quantifier not in get_args(Quantifier):
        raise ValueError(f"claim {name}: expected some or every as quantifier, got {quantifier!r}")
    return Claim(
        name=name,
        place=entry["place"],
        text=entry["claim"],
        kind=entry["kind"],
        judges=tuple(_judge(name, judge) for judge in entry.get("judges", ())),
        quantifier=quantifier,
        parameters=entry["parameters"],
        main=entry.get("main", False),
        same_as=entry.get("same_as", ""),
        note=entry.get("note", ""),
        untested=entry.get("untested", ""),
        needs=entry.get("needs", ""),
        words=entry.get("words", ""),
    )


def _judge(claim: str, entry: Mapping[str, Any]) -> Judge:
    """Build the judge of a claim; the keys of ``entry`` determine the kind of judge."""
    if "figure" in entry:
        return _figure(entry["figure"], literal=entry.get("literal", False))
    if "compare" in entry:
        first, *others = map(_figure, entry["compare"])
        second = others[0] if others else None
        return ByComparison(first=first, second=second, claimed=_range(entry))
    if "test" in entry:
        return ByTest(
            node=entry["test"],
            says=entry["says"],
            shows=entry.get("shows", "claim"),
            condition=entry.get("condition", ""),
        )
    if "study" in entry:
        return ByStudy(
            study=entry["study"],
            table=entry["table"],
            variant=entry["variant"],
            reference=entry.get("reference", ""),
            quantity=entry.get("quantity", ""),
            claimed=_range(entry),
            unit=entry["unit"],
            shows=entry.get("shows", "claim"),
            condition=entry.get("condition", ""),
        )
    raise ValueError(
        f"claim {claim}: expected a judge with figure, compare, test or study, got {list(entry)}"
    )


def _figure(words: "list[str]", *, literal: bool = False) -> ByFigure:
    """Build a judge from a figure's table, row and column; the column defaults to ``value``."""
    table, row, *column = words
    name = column[0] if column else "value"
    return ByFigure(table=table, row=row, column=name, literal=literal)


def _range(entry: Mapping[str, Any]) -> ClaimedRange:
    found = ClaimedRange(
        above=float(entry.get("above", -math.inf)), below=float(entry.get("below", math.inf))
    )
    if found == ClaimedRange() or found.above >= found.below:
        raise ValueError(f"expected a range with above or below, got {dict(entry)}")
    return found
