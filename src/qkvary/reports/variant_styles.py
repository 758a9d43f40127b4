"""The style of a variant in every drawing: colour, marker and dash of its family.

A study may have more variants than distinguishable colours. So the colour gives the family, the
marker repeats it for readers who cannot see the colour, and the name is always next to the point.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from qkvary.arch.labels import parse_variant
from qkvary.arch.variants import Variant
from qkvary.reports import label_placement, svg
from qkvary.reports.report import Legend

Marker = Literal["square", "circle", "ring", "triangle", "diamond", "star", "cross"]


@dataclass(frozen=True, slots=True)
class Family:
    """A group of variants with the same kind of saving."""

    key: str
    """The second part of the CSS class ``f-...``."""
    title: str
    marker: Marker
    dash: str
    """The ``stroke-dasharray`` in charts with several families; empty for a solid line."""
    light: str
    """The colour on white, also in exported figures (after Okabe and Ito, darkened)."""
    dark: str
    """The colour on a dark ground."""


FAMILIES = (
    Family("base", "baseline", "square", "", "#1f2933", "#e6eaee"),
    Family("share", "projections shared", "circle", "", "#0067a5", "#5db8f0"),
    Family(
        "plus", "projections shared, with position term (+)", "ring", "5 2", "#8c4a86", "#dc9bd4"
    ),
    Family("heads", "heads shared", "triangle", "2 2", "#c04e00", "#f79a4b"),
    Family("both", "projections and heads shared", "diamond", "7 2 2 2", "#007a59", "#43cf9e"),
    Family("identity", "a role reads the layer input", "star", "1 2", "#8a6a00", "#e8c547"),
    Family("other", "other", "cross", "3 3", "#5f6b76", "#a9b4be"),
)
_BY_KEY = {family.key: family for family in FAMILIES}


def read_variant(label: str) -> Variant | None:
    """Return the variant that a label names, or None for a name that is not a label."""
    try:
        return parse_variant(label)
    except ValueError:
        return None


def family_of(label: str, baseline: str) -> Family:
    """Return the family that a label belongs to; the baseline of the study has its own."""
    if label == baseline:
        return _BY_KEY["base"]
    variant = read_variant(label)
    return _BY_KEY["other" if variant is None else _key(variant)]


def _key(variant: Variant) -> str:
    shares = len(set(variant.sharing.roles.values())) < 3
    if variant.plus:
        return "plus"
    if variant.identity_roles:
        return "identity"
    if variant.num_kv_heads is not None:
        return "both" if shares else "heads"
    return "share" if shares else "other"


def present(variants: tuple[str, ...], baseline: str) -> list[Family]:
    """Return the families that occur, in their fixed order."""
    keys = {family_of(label, baseline).key for label in variants}
    return [family for family in FAMILIES if family.key in keys]


def mark(family: Family, x: float, y: float, size: float = 5.0, hollow: bool = False) -> Markup:
    """Draw the marker of a family; ``hollow`` leaves its inside empty."""
    style = f"mark f-{family.key}" + (" hollow" if hollow else "")
    match family.marker:
        case "circle":
            return svg.element("circle", cx=x, cy=y, r=size, class_=style)
        case "ring":
            sign = f"plus-sign f-{family.key}" + (" outlined" if hollow else "")
            return svg.group(
                (
                    svg.element("circle", cx=x, cy=y, r=size * 1.1, class_=style),
                    svg.path([(x - size * 0.5, y), (x + size * 0.5, y)], sign),
                    svg.path([(x, y - size * 0.5), (x, y + size * 0.5)], sign),
                )
            )
        case "square":
            side = size * 1.8
            return svg.element(
                "rect", x=x - side / 2, y=y - side / 2, width=side, height=side, class_=style
            )
        case _:
            return svg.path(_outline(family.marker, x, y, size), style, closed=True)


def _outline(marker: Marker, x: float, y: float, r: float) -> list[svg.Point]:
    match marker:
        case "triangle":
            shape = [(0.0, -1.2), (1.15, 0.85), (-1.15, 0.85)]
        case "diamond":
            shape = [(0.0, -1.3), (1.2, 0.0), (0.0, 1.3), (-1.2, 0.0)]
        case "star":
            long, brief = 1.4, 0.55
            shape = [
                (0.0, -long), (brief, -brief), (long, 0.0), (brief, brief),
                (0.0, long), (-brief, brief), (-long, 0.0), (-brief, -brief),
            ]  # fmt: skip
        case _:
            a, b = 0.4, 1.15
            shape = [
                (-b, -a), (-a, -a), (-a, -b), (a, -b), (a, -a), (b, -a),
                (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a),
            ]  # fmt: skip
    return [(x + dx * r, y + dy * r) for dx, dy in shape]


def name_points(
    named: Sequence[tuple[label_placement.Spot, Family]],
    obstacles: Sequence[label_placement.Box],
    area: label_placement.Box,
) -> tuple[list[Markup], list[Markup]]:
    """Write the names of points so that they cover nothing.

    Args:
        named: The points, with the families that give their colours.
        obstacles: Boxes that no name may touch.
        area: The area of the points.

    Returns:
        The lines between points and names that are apart, and the names.
    """
    left, top, right, bottom = area
    spots = [spot for spot, _ in named]
    labels = label_placement.place(spots, obstacles, (left + 2, top, right, bottom - 3))
    found = [
        (spot, family, label)
        for (spot, family), label in zip(named, labels, strict=True)
        if label is not None
    ]
    return (
        [
            svg.line((spot.x, spot.y), label.leader, "leader")
            for spot, _, label in found
            if label.leader
        ],
        [
            svg.text(label.x, label.y, label.text, f"name t-{family.key}")
            for _, family, label in found
        ],
    )


def family_legend(variants: tuple[str, ...], baseline: str) -> Legend:
    """Return the marks of the families that occur, for the key above the charts."""
    return Legend(
        title="Families of variants, the same in every chart",
        entries=tuple(
            (family.title, swatch(mark(family, 8, 8, 5))) for family in present(variants, baseline)
        ),
    )


def swatch(*parts: Markup) -> svg.Drawing:
    """Return a mark of a legend, 16 pixels wide and high."""
    return svg.Drawing(width=16, height=16, title="", description="", parts=parts)


def style_rules() -> str:
    """Return the colours of the families in CSS, light and dark."""
    light = "".join(f"--f-{family.key}:{family.light};" for family in FAMILIES)
    dark = "".join(f"--f-{family.key}:{family.dark};" for family in FAMILIES)
    rules = "".join(
        f".f-{family.key}{{--c:var(--f-{family.key})}}.t-{family.key}{{fill:var(--f-{family.key})}}"
        for family in FAMILIES
    )
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{rules}\n"
