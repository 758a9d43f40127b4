"""Renders the drawings of a report as SVG, PNG and PDF; equal reports give equal bytes.

A drawing is the same as on the page, except that it is on white and its colours are written out.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Literal

from markupsafe import Markup

from qkvary.reports import svg
from qkvary.reports.report import Chart, Group, Report, walk
from qkvary.reports.variant_styles import FAMILIES
from qkvary.storage.packages import require
from qkvary.text import names

FigureFormat = Literal["svg", "png", "pdf"]

PNG_SCALE = 3
"""Pixels of a PNG per pixel of the drawing."""
_GAP, _CAPTION, _LINE = 14.0, 22.0, 15.0
_LETTER = 5.6
"""Average width of a letter in a note, in pixels."""
_WIDEST = 1300.0
"""The maximum width of a row of drawings, in pixels."""


def figure_files(report: Report, formats: Sequence[FigureFormat]) -> dict[str, bytes]:
    """Return every figure in every format by its file name."""
    files: dict[str, bytes] = {}
    for stem, group in _figures(report) if formats else ():
        drawing = sheet(group)
        for kind in formats:
            files[f"{stem}.{kind}"] = _convert(drawing, kind)
    return files


def _figures(report: Report) -> Iterator[tuple[str, Group]]:
    if report.picture:
        yield report.picture.file, Group(blocks=(report.picture,))
    for section in report.sections:
        for block in walk(section.blocks):
            if isinstance(block, Group) and block.file:
                yield block.file, block
            elif isinstance(block, Chart) and block.file:
                yield block.file, Group(blocks=(block,))


def _convert(drawing: str, kind: FigureFormat) -> bytes:
    if kind == "svg":
        return drawing.encode("utf-8", "replace")
    require("vl_convert")
    # Needed only for PNG and PDF.
    import vl_convert  # noqa: PLC0415

    if kind == "png":
        return vl_convert.svg_to_png(drawing, scale=PNG_SCALE)
    return vl_convert.svg_to_pdf(drawing)


def sheet(group: Group) -> str:
    """Return drawings in rows, each with its caption above and its notes below."""
    cells = [_cell(chart) for chart in group.blocks if isinstance(chart, Chart)]
    cell_width = max(width for width, _, _ in cells) + _GAP
    columns = max(1, min(len(cells), int(_WIDEST / cell_width)))
    width = columns * cell_width + _GAP
    parts: list[Markup] = []
    top = _GAP
    if group.title:
        words = names.short(group.title, int(width / 8))
        parts.append(svg.text(_GAP + 4, top + 11, words, "title"))
        top += _CAPTION + _GAP
    for start in range(0, len(cells), columns):
        row = cells[start : start + columns]
        for place, (_, _, inner) in enumerate(row):
            move = f"translate({svg.number(_GAP + place * cell_width)} {svg.number(top)})"
            parts.append(svg.group(inner, transform=move))
        top += max(height for _, height, _ in row) + _GAP
    for line in _wrap(group.notes, width - 2 * _GAP):
        parts.append(svg.text(_GAP + 4, top, line, "tick"))
        top += _LINE
    return svg.element(
        "svg",
        # The style rules are from this package; reports cannot add to them.
        svg.element("style", Markup(print_style())),  # noqa: S704
        svg.element("rect", width=width, height=top, fill="white"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {svg.number(width)} {svg.number(top)}",
        width=width,
        height=top,
    )


def _cell(chart: Chart) -> tuple[float, float, list[Markup]]:
    """Return the width, the height and the parts of a drawing with caption and notes."""
    drawing = chart.draw()
    parts: list[Markup] = []
    top = 0.0
    above = [(line, "tick") for line in _wrap([chart.detail], drawing.width)]
    if chart.caption:
        above.insert(0, (names.short(chart.caption, int(drawing.width / 6)), "panel-title"))
    for words, style in above:
        parts.append(svg.text(4, top + 13, words, style))
        top += _LINE
    top += 7 if top else 0
    parts.append(svg.group(drawing.parts, transform=f"translate(0 {svg.number(top)})"))
    top += drawing.height
    for line in _wrap(chart.table.notes if chart.table else (), drawing.width):
        top += _LINE
        parts.append(svg.text(4, top, line, "tick"))
    return drawing.width, top, parts


def _wrap(notes: Iterable[str], width: float) -> list[str]:
    return [line for note in notes for line in textwrap.wrap(note, int(width / _LETTER))]


def print_style() -> str:
    """Return the style of the page's drawings.

    Every variable is replaced by its value in the light theme.
    """
    text = resources.files("qkvary.reports").joinpath("template", "charts.css").read_text("utf-8")
    light, rest = text.split("@media", 1)
    rules = rest[rest.index("\nsvg") :]
    values = dict(re.findall(r"--([\w-]+): ([^;]+);", light)) | {"paper": "white"}
    rules = re.sub(r"@media[^{]*\{.*?\} \}", "", rules)
    rules = re.sub(r"var\(--(?!c\))([\w-]+)\)", lambda found: values[found[1]], rules)
    fixed = [
        'svg text { font-family: "Liberation Sans", Arial, Helvetica, sans-serif; }',
        "svg .title { font-weight: 600; font-size: 14px; }",
    ]
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", rules):
        if "var(--c)" not in body:
            fixed.append(f"{selector.strip()} {{{body}}}")
            continue
        for family in FAMILIES:
            own = ", ".join(f"{one.strip()}.f-{family.key}" for one in selector.split(","))
            fixed.append(f"{own} {{{body.replace('var(--c)', family.light)}}}")
    fixed += [f"svg .t-{family.key} {{ fill: {family.light}; }}" for family in FAMILIES]
    return "\n".join(fixed)
