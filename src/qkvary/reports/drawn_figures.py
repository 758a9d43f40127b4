"""Our own drawings as matplotlib figures: the picture of a page, fit for a paper.

Reads back what ``svg`` writes, element by element, so that a page and a figure cannot differ. Knows
elements and classes, not what is drawn; what it does not know is an error, never left out.
"""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon, Rectangle
from matplotlib.text import Text

from qkvary.reports.families import FAMILIES
from qkvary.text import names

PIXELS_PER_INCH = 115.2
"""Makes a chart of 400 pixels as wide as a column of a paper."""
POINTS = 72 / PIXELS_PER_INCH
"""Points of a pixel."""
CAPTION, NOTE = 22.0, 12.5
"""Pixels of a line above and below a drawing."""
GAP = 14.0
"""Pixels between two drawings."""
_NOTE_WIDTH = 5.5
"""Pixels of an average letter in a note."""

_INK, _SOFT, _FAINT, _SHADE, _PAPER = "#1f2933", "#52606d", "#7b8794", "#f3f5f7", "white"
_COLOURS = {family.key: family.light for family in FAMILIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stroke:
    """How a class of lines looks; without a colour in that of its family."""

    colour: str | None = None
    width: float = 1.0
    dash: tuple[float, ...] = ()


_STROKES: Mapping[str, _Stroke] = {
    "axis": _Stroke(colour=_FAINT),
    "curve": _Stroke(width=1.7),
    "estimate": _Stroke(width=1.3, dash=(1.5, 2.5)),
    "frontier": _Stroke(colour=_FAINT, width=1.6),
    "grid": _Stroke(colour="#e4e8ec"),
    "leader": _Stroke(colour="#9aa5b1", width=0.8),
    "limit": _Stroke(colour=_FAINT, dash=(3, 3)),
    "mark": _Stroke(width=1.6),
    "plus-sign": _Stroke(colour=_PAPER, width=1.6),
    "reference": _Stroke(colour=_INK, width=1.1),
    "whisker": _Stroke(width=1.4),
}
_SIZES = {"name": 11.0, "tick": 10.5, "axis-title": 10.5}
_WORDS = {"hollow", "open", "taken", "over", "strong", "end", "middle"}


def figure_of(
    drawings: Sequence[tuple[str, Markup]], notes: Sequence[str], name: str = ""
) -> Figure:
    """Draw drawings side by side, each under its caption, and notes below all.

    Args:
        drawings: Captions, and what ``svg.figure`` returned.
        notes: Sentences, each on lines of its own.
        name: Stands above everything where there is one.
    """
    # Only what we wrote a moment before is read, with every text escaped.
    read = [(caption, ET.fromstring(drawing)) for caption, drawing in drawings]  # noqa: S314
    boxes = [[float(part) for part in root.attrib["viewBox"].split()] for _, root in read]
    width = sum(box[2] for box in boxes) + GAP * (len(boxes) - 1)
    tallest = max(box[3] for box in boxes)
    lines = [
        line for note in notes for line in textwrap.wrap(_one_line(note), int(width / _NOTE_WIDTH))
    ]
    top = CAPTION * (2 if name else 1)
    height = top + tallest + len(lines) * NOTE + (8 if lines else 0)
    figure = Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH))
    plot = figure.add_axes((0, 0, 1, 1))
    plot.set_axis_off()
    plot.set_xlim(0, width)
    plot.set_ylim(height, 0)
    if name:
        _write(plot, 8, 15, _one_line(name), 12.0, _INK)
    left = 0.0
    for (caption, root), box in zip(read, boxes, strict=True):
        _write(plot, left + 8, top - 7, _one_line(caption), 11.5, _INK)
        _draw_all(_Sheet(plot=plot, left=left, top=top), root)
        left += box[2] + GAP
    for index, line in enumerate(lines):
        _write(plot, 8, top + tallest + 6 + (index + 0.7) * NOTE, line, 9.6, _SOFT)
    return figure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sheet:
    """Where a drawing goes."""

    plot: Axes
    left: float
    top: float

    def at(self, x: float, y: float) -> tuple[float, float]:
        """A place of the drawing on the figure."""
        return self.left + x, self.top + y


def _one_line(text: str) -> str:
    return names.clean(" ".join(text.split()))


def _draw_all(sheet: _Sheet, parent: ET.Element) -> None:
    for node in parent:
        _DRAWERS[node.tag](sheet, node)


def _classes(node: ET.Element) -> list[str]:
    return node.attrib.get("class", "").split()


def _colour(classes: Sequence[str]) -> str:
    found = (_COLOURS[name[2:]] for name in classes if name[:2] in {"f-", "t-"})
    return next(found, _INK)


def _stroke(node: ET.Element) -> dict[str, Any]:
    """How the line of an element looks to matplotlib."""
    classes = _classes(node)
    known = [name for name in classes if name in _STROKES]
    strange = [name for name in classes if name not in {*known, *_WORDS} and name[:2] != "f-"]
    if strange or len(known) != 1:
        raise ValueError(f"expected one known class of lines, got {node.attrib.get('class')!r}")
    stroke = _STROKES[known[0]]
    width = stroke.width * POINTS
    dash = stroke.dash or tuple(map(float, node.attrib.get("stroke-dasharray", "").split()))
    look: dict[str, Any] = {
        "color": stroke.colour or _colour(classes),
        "linewidth": width,
        "solid_capstyle": "butt",
    }
    if dash:
        # Dashes are counted in widths of the line.
        look["linestyle"] = (0, tuple(part * POINTS / width for part in dash))
    return look


def _draw_line(sheet: _Sheet, node: ET.Element) -> None:
    ends = [sheet.at(_number(node, f"x{end}"), _number(node, f"y{end}")) for end in "12"]
    sheet.plot.plot([x for x, _ in ends], [y for _, y in ends], **_stroke(node))


def _draw_path(sheet: _Sheet, node: ET.Element) -> None:
    data = node.attrib["d"]
    points = _points(data)
    places = [sheet.at(x, y) for x, y in points]
    if data.endswith("z"):
        sheet.plot.add_patch(Polygon(places, **_filled(node)))
    elif places:
        sheet.plot.plot([x for x, _ in places], [y for _, y in places], **_stroke(node))


def _points(data: str) -> list[tuple[float, float]]:
    """The corners of what ``svg.path_data`` wrote: one absolute place, then relative moves."""
    points: list[tuple[float, float]] = []
    for command, x, y in re.findall(r"([Ml])(-?[\d.]+) (-?[\d.]+)", data):
        before = points[-1] if command == "l" else (0.0, 0.0)
        points.append((before[0] + float(x), before[1] + float(y)))
    return points


def _filled(node: ET.Element) -> dict[str, Any]:
    classes = _classes(node)
    if "taken" in classes:
        return {"facecolor": _SHADE, "edgecolor": "none", "zorder": 0.5}
    look = _stroke(node)
    return {
        "facecolor": _PAPER if "hollow" in classes else look["color"],
        "edgecolor": look["color"],
        "linewidth": look["linewidth"],
        "zorder": 3,
    }


def _draw_rect(sheet: _Sheet, node: ET.Element) -> None:
    corner = sheet.at(_number(node, "x"), _number(node, "y"))
    size = _number(node, "width"), _number(node, "height")
    sheet.plot.add_patch(Rectangle(corner, *size, **_filled(node)))


def _draw_circle(sheet: _Sheet, node: ET.Element) -> None:
    centre = sheet.at(_number(node, "cx"), _number(node, "cy"))
    sheet.plot.add_patch(Circle(centre, _number(node, "r"), **_filled(node)))


def _draw_text(sheet: _Sheet, node: ET.Element) -> None:
    classes = _classes(node)
    size = next((_SIZES[name] for name in classes if name in _SIZES), None)
    if size is None:
        raise ValueError(f"expected a known class of text, got {node.attrib.get('class')!r}")
    quiet = "name" not in classes and "strong" not in classes
    side = "right" if "end" in classes else "center" if "middle" in classes else "left"
    x, y = sheet.at(_number(node, "x"), _number(node, "y"))
    colour = _SOFT if quiet else _colour(classes)
    written = _write(sheet.plot, x, y, node.text or "", size, colour, side=side)
    if "over" in classes:
        written.set_bbox({"facecolor": _SHADE, "edgecolor": "none", "pad": 0.4})


def _write(
    plot: Axes, x: float, y: float, text: str, size: float, colour: str, *, side: str = "left"
) -> Text:
    return plot.text(
        x,
        y,
        text,
        fontsize=size * POINTS,
        color=colour,
        horizontalalignment=side,
        verticalalignment="baseline",
        zorder=4,
    )


def _number(node: ET.Element, name: str) -> float:
    return float(node.attrib[name])


def _skip(_sheet: _Sheet, _node: ET.Element) -> None:
    """Words for those who do not see the drawing; the notes have them."""


_DRAWERS: Mapping[str, Callable[[_Sheet, ET.Element], None]] = {
    "circle": _draw_circle,
    "desc": _skip,
    "g": _draw_all,
    "line": _draw_line,
    "path": _draw_path,
    "rect": _draw_rect,
    "text": _draw_text,
    "title": _skip,
}
