"""Defines the style of a variant in every drawing: colour, marker and dash of its family.

A study may have more variants than distinguishable colours. So the colour gives the family, the
marker repeats it for readers who cannot see the colour, and the name is always next to the point.
"""

from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from qkvary.arch.labels import parse_variant
from qkvary.arch.variants import Variant
from qkvary.reports import svg
from qkvary.reports.report import Legend

Marker = Literal["square", "circle", "ring", "triangle", "diamond", "star", "cross"]


@dataclass(frozen=True, slots=True)
class Family:
    """A group of variants with the same kind of saving."""

    key: str
    """The name of the family in its CSS class, ``f-<key>``."""
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
    Family(
        "identity",
        "query, key or value is the layer input itself",
        "star",
        "1 2",
        "#8a6a00",
        "#e8c547",
    ),
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
    """Return the family that a label belongs to.

    The baseline of the study is the only member of a separate family.
    """
    if label == baseline:
        return _BY_KEY["base"]
    variant = read_variant(label)
    if variant is None:
        return _BY_KEY["other"]
    if variant.plus:
        return _BY_KEY["plus"]
    if variant.identity_roles:
        return _BY_KEY["identity"]
    shares = len(set(variant.sharing.roles.values())) < 3
    if variant.num_kv_heads is not None:
        return _BY_KEY["both" if shares else "heads"]
    return _BY_KEY["share" if shares else "other"]


def mark(family: Family, x: float, y: float, size: float = 5.0, hollow: bool = False) -> Markup:
    """Draw the marker of a family; ``hollow`` leaves its inside empty."""
    style = f"mark f-{family.key}" + (" hollow" if hollow else "")
    match family.marker:
        case "circle":
            return svg.element("circle", cx=x, cy=y, r=size, class_=style)
        case "ring":
            sign = f"plus-sign f-{family.key}" + (" outlined" if hollow else "")
            half = size * 0.5
            return svg.group(
                (
                    svg.element("circle", cx=x, cy=y, r=size * 1.1, class_=style),
                    svg.path([(x - half, y), (x + half, y)], sign),
                    svg.path([(x, y - half), (x, y + half)], sign),
                )
            )
        case "square":
            side = size * 1.8
            corner = {"x": x - side / 2, "y": y - side / 2}
            return svg.element("rect", **corner, width=side, height=side, class_=style)
        case _:
            outline = [(x + dx * size, y + dy * size) for dx, dy in _OUTLINES[family.marker]]
            return svg.path(outline, style, closed=True)


_OUTLINES: dict[str, tuple[svg.Point, ...]] = {
    "triangle": ((0.0, -1.2), (1.15, 0.85), (-1.15, 0.85)),
    "diamond": ((0.0, -1.3), (1.2, 0.0), (0.0, 1.3), (-1.2, 0.0)),
    "star": (
        (0.0, -1.4), (0.55, -0.55), (1.4, 0.0), (0.55, 0.55),
        (0.0, 1.4), (-0.55, 0.55), (-1.4, 0.0), (-0.55, -0.55),
    ),
    "cross": (
        (-1.15, -0.4), (-0.4, -0.4), (-0.4, -1.15), (0.4, -1.15), (0.4, -0.4), (1.15, -0.4),
        (1.15, 0.4), (0.4, 0.4), (0.4, 1.15), (-0.4, 1.15), (-0.4, 0.4), (-1.15, 0.4),
    ),
}  # fmt: skip


def family_legend(variants: tuple[str, ...], baseline: str) -> Legend:
    """Return the legend above the charts: one mark for each family that the variants belong to."""
    keys = {family_of(label, baseline).key for label in variants}
    shown = (family for family in FAMILIES if family.key in keys)
    return Legend(
        title="Families of variants (same colours and markers in every chart)",
        entries=tuple((family.title, _swatch(family)) for family in shown),
    )


def _swatch(family: Family) -> Markup:
    size = {"width": 16, "height": 16}
    return svg.element("svg", mark(family, 8, 8), viewBox="0 0 16 16", aria_hidden="true", **size)


def style_rules() -> str:
    """Return the colours of the families in CSS, light and dark."""
    light = "".join(f"--f-{family.key}:{family.light};" for family in FAMILIES)
    dark = "".join(f"--f-{family.key}:{family.dark};" for family in FAMILIES)
    rules = "".join(
        f".f-{family.key}{{--c:var(--f-{family.key})}}.t-{family.key}{{fill:var(--f-{family.key})}}"
        for family in FAMILIES
    )
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{rules}\n"
