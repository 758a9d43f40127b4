"""Draws the attention block of any variant, like figure 1 of the papers.

From bottom to top: the layer input, the learned projections, query, key and value, the
scores, the weighted sum. No variant is special-cased by name.
"""

import textwrap

from markupsafe import Markup

from qkvary.arch import descriptions, equations
from qkvary.arch.labels import format_label, parse_label
from qkvary.arch.sharing import IDENTITY, LETTERS, Role, Source
from qkvary.arch.variants import Variant
from qkvary.reports import svg
from qkvary.reports.report import Chart
from qkvary.reports.variant_styles import read_variant

_WIDTH, _HEIGHT = 236.0, 268.0
_COLUMNS: dict[Role, float] = {"query": 50.0, "key": 118.0, "value": 186.0}
_Y_INPUT, _Y_SOURCE, _Y_ROLE, _Y_SCORES, _Y_SUM = 246.0, 190.0, 136.0, 82.0, 34.0
_APART = 66.0
_LINE = 24
"""Maximum number of characters per line of the formula of the scores."""


def diagram(label: str) -> Chart | None:
    """Return the drawing of the block with this label, or None if the name is not a label."""
    variant = read_variant(label)
    if variant is None:
        return None
    said, kept = descriptions.describe(variant), descriptions.name_cached(variant)
    meaning = f"{said[0].upper()}{said[1:]}. A cache keeps {kept}."

    def draw() -> svg.Drawing:
        return svg.Drawing(
            width=_WIDTH,
            height=_HEIGHT,
            title=f"The block of {label}",
            description=meaning,
            parts=tuple(_parts(variant)),
        )

    return Chart(draw=draw, caption=label, detail=meaning)


def block_labels(label: str) -> tuple[str, ...]:
    """Return the distinct labels of a network's blocks: a single label if all layers are alike."""
    try:
        variant = parse_label(label)
    except ValueError:
        return (label,)
    if isinstance(variant, Variant):
        return (label,)
    return tuple(dict.fromkeys(format_label(one) for one, _ in variant.runs))


def _centres(variant: Variant) -> dict[Source, float]:
    """Return the x position of each projection: below its roles, without overlaps."""
    wanted: dict[Source, float] = {
        source: sum(_COLUMNS[role] for role in variant.sharing.readers(source))
        / len(variant.sharing.readers(source))
        for source in variant.sharing.projections
    }
    order = sorted(wanted, key=lambda source: (wanted[source], source))
    places = [wanted[source] for source in order]
    for index in range(1, len(places)):
        lack = _APART - (places[index] - places[index - 1])
        if lack > 0:
            places[index - 1] -= lack / 2
            places[index] += lack / 2
    if variant.sharing.key == IDENTITY:
        # The layer input goes straight up to the key, so nothing may be in the way.
        places = [place - 46 if abs(place - 118) < 30 else place for place in places]
    return dict(zip(order, places, strict=True))


def _parts(variant: Variant) -> list[Markup]:
    centres = _centres(variant)
    parts: list[Markup] = []
    parts.extend(_wire((118, _Y_INPUT - 12), (x, _Y_SOURCE + 14)) for x in centres.values())
    for role, source in variant.sharing.roles.items():
        if source == IDENTITY:
            parts.append(_past(role))
        else:
            parts.append(_wire((centres[source], _Y_SOURCE - 14), (_COLUMNS[role], _Y_ROLE + 13)))
    kept = " kept" if IDENTITY in variant.cached else ""
    mixture = equations.write_mixture(variant, "weights", LETTERS["value"])
    return [
        *parts,
        _wire((_COLUMNS["query"], _Y_ROLE - 13), (_COLUMNS["query"], _Y_SCORES + 14)),
        _wire((_COLUMNS["key"], _Y_ROLE - 13), (_COLUMNS["key"], _Y_SCORES + 14)),
        _wire((84, _Y_SCORES - 14), (84, _Y_SUM + 13)),
        _wire((_COLUMNS["value"], _Y_ROLE - 13), (172, _Y_SUM + 13)),
        _box(118, _Y_INPUT, 60, 24, "input x", f"stage{kept}"),
        *(part for source, x in centres.items() for part in _projection(variant, source, x)),
        *(part for role in _COLUMNS for part in _role(variant, role)),
        _scores(variant),
        _box(118, _Y_SUM, 132, 26, mixture, "stage"),
        _wire((118, _Y_SUM - 13), (118, 4)),
    ]


def _wire(start: svg.Point, end: svg.Point, direct: bool = False) -> Markup:
    (x0, y0), (x1, y1) = start, end
    bend = (y0 + y1) / 2
    n = svg.number
    way = f"M{n(x0)} {n(y0)}C{n(x0)} {n(bend)} {n(x1)} {n(bend)} {n(x1)} {n(y1)}"
    return svg.element("path", d=way, class_="wire direct" if direct else "wire")


def _past(role: Role) -> Markup:
    """Draw the line on which the layer input bypasses the projections.

    It runs on the left for a query, on the right for a value, and straight up for a key.
    """
    n = svg.number
    x, end = _COLUMNS[role], _Y_ROLE + 13
    if role == "key":
        return _wire((118, _Y_INPUT - 12), (x, end), direct=True)
    side = 88.0 if role == "query" else 148.0
    out = 10.0 if role == "query" else _WIDTH - 10
    way = (
        f"M{n(side)} {n(_Y_INPUT)}"
        f"C{n((side + out) / 2)} {n(_Y_INPUT)} {n(out)} {n(_Y_INPUT - 14)} {n(out)} "
        f"{n(_Y_SOURCE)}S{n(x)} {n(end + 24)} {n(x)} {n(end)}"
    )
    return svg.element("path", d=way, class_="wire direct")


def _box(
    x: float, y: float, width: float, height: float, content: str, class_: str, index: str = ""
) -> Markup:
    below = svg.element("tspan", index, dy=3.5, class_="index") if index else Markup("")
    label = svg.element("text", content, below, x=x, y=y + 4, class_="box-text middle")
    return svg.group((_outline(x, y, width, height, class_), label))


def _outline(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    corner = {"x": x - width / 2, "y": y - height / 2}
    return svg.element("rect", **corner, width=width, height=height, rx=4, class_=f"box {class_}")


def _projection(variant: Variant, source: Source, x: float) -> list[Markup]:
    readers = "".join(LETTERS[role] for role in variant.sharing.readers(source))
    style = "learned kept" if source in variant.cached else "learned"
    parts = [_box(x, _Y_SOURCE, 56, 28, "W", style, readers.lower())]
    if rank := variant.rank(source):
        parts.append(svg.text(x + 3, _Y_SOURCE + 27, f"rank {rank}", "beside"))
    return parts


def _role(variant: Variant, role: Role) -> list[Markup]:
    x = _COLUMNS[role]
    parts = [
        svg.element("circle", cx=x, cy=_Y_ROLE, r=13, class_="role"),
        svg.text(x, _Y_ROLE + 4.5, LETTERS[role], "role-text middle"),
    ]
    if role == "value" and variant.num_kv_heads is not None:
        word = "head" if variant.num_kv_heads == 1 else "heads"
        parts.append(svg.text(x + 17, _Y_ROLE - 2, f"{variant.num_kv_heads} KV", "beside"))
        parts.append(svg.text(x + 17, _Y_ROLE + 10, word, "beside"))
    return parts


def _scores(variant: Variant) -> Markup:
    """Draw the formula of the attention weights, with the letters of the query and key.

    A long formula takes several lines.
    """
    query, key = LETTERS["query"], LETTERS["key"]
    if variant.sharing.is_symmetric:
        # Equal roles have one letter.
        query = key = equations.HEAD_INPUT if variant.sharing.key == IDENTITY else key
    lines = textwrap.wrap(equations.write_weights(variant, query, key), _LINE) or [""]
    top = _Y_SCORES + 4 - 6.5 * (len(lines) - 1)
    texts = (
        svg.element("text", line, x=84, y=top + 13 * index, class_="box-text middle")
        for index, line in enumerate(lines)
    )
    return svg.group((_outline(84, _Y_SCORES, 152, 16.0 + 13 * len(lines), "stage"), *texts))
