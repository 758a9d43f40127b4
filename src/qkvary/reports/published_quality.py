"""The papers' quality against cache as a section of a page: pictures, tables, caveats.

Stands on the page of a plan, and on that of a study whose variants were trained as language models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qkvary.literature.quality import Size
from qkvary.planning.pictures import (
    QualityPicture,
    draw_quality,
    estimate_note,
    shared_caveats,
)
from qkvary.reports import svg
from qkvary.reports.families import FAMILIES, mark
from qkvary.reports.plan_charts import quality_chart
from qkvary.reports.plan_tables import quality_table
from qkvary.reports.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing with the table behind it and what must be known about it."""

    caption: str
    """What is drawn."""
    drawing: Markup
    """The chart."""
    table: Table
    """Its figures."""
    caveats: tuple[str, ...] = ()
    """What must be known about this picture alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSection:
    """The papers' quality against cache: a picture a size, and what limits all of them."""

    pictures: tuple[Picture, ...]
    """One of each size."""
    caveats: tuple[str, ...]
    """What must be known about all of them."""
    key: tuple[tuple[str, Markup], ...]
    """Names of the marks, each with its drawing."""


def show_published(sizes: Sequence[Size], name: str) -> PublishedSection:
    """Return the papers' quality against cache, with every caveat once.

    Args:
        sizes: Which of their networks, in this order.
        name: Begins the ids of the drawings.
    """
    pictures = [draw_quality(size) for size in sizes]
    shared = shared_caveats(pictures)
    return PublishedSection(
        pictures=tuple(
            _panel(picture, f"{name}-{index}", shared) for index, picture in enumerate(pictures)
        ),
        caveats=(*shared, estimate_note()),
        key=_quality_key(),
    )


def _panel(picture: QualityPicture, name: str, shared: Sequence[str]) -> Picture:
    return Picture(
        caption=f"The papers’ {picture.size} networks",
        drawing=quality_chart(picture, name),
        table=quality_table(picture, name),
        caveats=tuple(caveat for caveat in picture.caveats if caveat not in shared),
    )


def _quality_key() -> tuple[tuple[str, Markup], ...]:
    """Small drawings of what the marks mean, none told by its colour."""
    family = FAMILIES[0]
    bar = [svg.line((8, 4), (8, 12), "whisker"), *(_end(y, "whisker") for y in (4, 12))]
    dots = [svg.line((8, 2), (8, 14), "estimate"), *(_end(y, "estimate") for y in (2, 14))]
    return (
        ("on the frontier", _swatch(mark(family, 8, 8, 5))),
        ("† dominated", _swatch(mark(family, 8, 8, 5, hollow=True))),
        ("what the printed digits leave open", _swatch(svg.group(bar, class_="f-base"))),
        ("estimate per real token", _swatch(svg.group(dots, class_="f-base"))),
    )


def _end(y: float, class_: str) -> Markup:
    return svg.line((3, y), (13, y), class_)


def _swatch(drawn: Markup) -> Markup:
    return svg.element("svg", drawn, viewBox="0 0 16 16", width=16, height=16, aria_hidden="true")
