"""A report: a question, its answer and the sections that support it.

A ``Report`` holds content and no layout. Other modules turn it into an HTML page, Markdown, CSV,
figures, JSON or text in the terminal.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, get_args

from markupsafe import Markup

from qkvary.reports.svg import Drawing
from qkvary.reports.tables import Table, tabulate, word

ReportFormat = Literal["html", "markdown", "csv", "svg", "png", "pdf", "json"]
FORMATS: tuple[ReportFormat, ...] = get_args(ReportFormat)
DEFAULT_FORMATS = FORMATS[:-1]

Layout = Literal["", "narrow", "wide", "panels", "maps", "diagrams"]


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph."""

    text: str
    small: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of short statements."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names with their values or explanations."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of code or output, which are shown exactly as they are."""

    lines: tuple[str, ...]
    language: str = "sh"
    """The language of the code block in Markdown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing with its caption and the table of its values."""

    draw: Callable[[], Drawing]
    """Draws the chart; only renderers that show drawings call it."""
    caption: str = ""
    detail: str = ""
    """A second line of the caption."""
    table: Table | None = None
    file: str = ""
    """The name of the chart's file, without suffix; empty for a chart without its own file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """The meaning of marks that several charts share."""

    title: str
    entries: tuple[tuple[str, Markup], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Blocks under one heading; the charts of the group are shown side by side."""

    blocks: "tuple[Block, ...]"
    title: str = ""
    detail: str = ""
    """Small text after the title."""
    lead: str = ""
    notes: tuple[str, ...] = ()
    """Sentences below the charts."""
    layout: Layout = ""
    file: str = ""
    """The name, without suffix, of the file that shows all charts of the group. Empty if there is
    no such file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Blocks that the reader can unfold."""

    title: str
    blocks: "tuple[Block, ...]"


Block = Prose | Bullets | Pairs | Code | Chart | Legend | Group | Fold | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One topic of a report."""

    key: str
    title: str
    blocks: tuple[Block, ...]
    lead: str = ""
    link: str = ""
    """A short title for the table of contents; the title itself if empty."""
    brief: bool = False
    """Whether the terminal prints the section by default."""
    full: bool = False
    """Whether the terminal prints the section when the whole report is requested."""


def facts_section(title: str, facts: Iterable[tuple[str, str]]) -> Section:
    """Return a section with names and values in two columns."""
    columns = (word(f"{place}=", "", itemgetter(place)) for place in (0, 1))
    table = tabulate(title, title, facts, *columns, main=True)
    return Section(key=title, title=title, blocks=(table,), brief=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is shown about one subject."""

    subject: str
    """Kind and name of the subject, such as ``"study: quickstart"``."""
    question: str
    lead: str = ""
    answer: tuple[str, ...] = ()
    picture: Chart | None = None
    """The chart next to the answer."""
    caveats: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()
    datasets: tuple[Table, ...] = ()
    """Tables of unrounded values for the CSV files."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The content of the JSON document."""
    stem: str = "report"
    """The file name of the page and of the Markdown document, without suffix."""
    record: bytes = b""
    """The file ``record.json`` of a measurement outside a store of runs; otherwise empty."""


def is_shortened(report: Report) -> bool:
    """Return whether the terminal leaves out a part of a report by default."""
    return any(
        section.full
        or (section.brief and any(isinstance(one, Table) and one.brief for one in section.blocks))
        for section in report.sections
    )


def walk(blocks: tuple[Block, ...]) -> "list[Block]":
    """Return blocks and all blocks inside them, in reading order."""
    found: list[Block] = []
    for block in blocks:
        found.append(block)
        if isinstance(block, Group | Fold):
            found.extend(walk(block.blocks))
    return found
