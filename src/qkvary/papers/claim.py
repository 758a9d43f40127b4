"""Reads the claims of the papers, and the numbers and tests (the judges) that decide them.

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
"""``neither`` marks a test or figure that is listed with a claim but does not decide it."""
Quantifier = Literal["", "some", "every"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRange:
    """The range of a difference or figure for which the claim is true."""

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
    """True if the claim states its convention. A figure that is right only under another convention
    then refutes the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByComparison:
    """Judges a claim by a published number, or by the difference between two published numbers.

    The interval of the result allows for the rounding of published numbers.
    """

    first: ByFigure
    second: ByFigure | None
    """The number to subtract from ``first``; None to judge ``first`` itself."""
    claimed: ClaimedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTest:
    """Judges a claim by an exact statement that a test of this project checks."""

    node: str
    """Pytest's node ID of the test, without parameters."""
    says: str
    """The statement that the test proves, as a sentence."""
    shows: Shown = "claim"
    condition: str = ""
    """The condition of the verdict, worded to follow "It holds" or "It does not hold". Empty if
    there is no condition."""


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
    """A metric, a column, ``steps_to_solve`` or ``diverged``; empty for the metric of the table."""
    shows: Literal["claim", "neither"] = "claim"
    condition: str = ""
    """The condition of the verdict, worded to follow "It holds" or "It does not hold". Empty if
    there is no condition."""

    @property
    def tasks(self) -> frozenset[str]:
        """The tasks and settings in the name of the table."""
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
    """Name of the document and number of the claim, such as ``poster-12``."""
    place: str
    """The section, table or caption that makes the claim."""
    text: str
    """The claim, paraphrased."""
    kind: ClaimKind
    judges: tuple[Judge, ...]
    quantifier: Quantifier
    """The judges that must agree: ``some`` if the claim says "sometimes", ``every`` if the claim
    names its settings or variants. If the field is empty, a disagreement between judges becomes a
    condition of the verdict."""
    parameters: int | None
    """Number of parameters of the smallest networks in the claim; None for a claim about all
    sizes."""
    main: bool
    """True for a claim in an abstract or conclusion, or for a main statement of an article."""
    same_as: str
    """The name of another claim with the same meaning; empty if there is none."""
    note: str
    """Sentences on the reading of the claim or the limits of its judges; may be empty."""
    untested: str
    """The untested part of the claim, as a noun or a clause; empty if all of it is tested."""
    needs: str
    """A sentence on the requirements of a test; empty for a claim with judges."""
    words: str
    """Additional search terms from the document; reports do not show them."""

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
            f"claims of {name!r}: expected schema_version {SCHEMA_VERSION} and document {name!r}, "
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
        f"claim {claim}: expected a judge with one of the keys figure, compare, test, study; "
        f"got the keys {list(entry)}"
    )


def _figure(words: "list[str]", *, literal: bool = False) -> ByFigure:
    """Build a judge from ``[table, row, column]``; if the column is left out, it is ``value``."""
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
