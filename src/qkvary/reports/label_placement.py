"""Places names in a scatter chart so that no name covers another name or a point.

Placement is greedy and deterministic. Each name takes the first free position on a spiral around
its point. If that position is not next to the point, a thin line connects the name and the point.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a rectangle, in pixels."""

HEIGHT = 14.0
_WIDTHS = {
    **dict.fromkeys("-I", 5.0),
    **dict.fromkeys("()[]/,", 5.6),
    **dict.fromkeys("=+", 10.1),
    "Q": 10.3,
    "M": 12.0,
}
"""Widths in pixels of a bold 12 px letter, in Helvetica or DejaVu Sans, whichever is wider.
Capitals have 9.9, all other letters 8.4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A name, and where it is placed in the chart."""

    text: str
    x: float
    """The left end of the text, in pixels."""
    y: float
    """The baseline of the text, in pixels."""
    leader: tuple[float, float] | None
    """Where the line from the point to the name ends; None if the name is next to the point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A point of the chart that needs a label."""

    text: str
    x: float
    y: float


def text_width(text: str) -> float:
    """Return an upper bound of the width of a label."""
    return 2 + sum(_WIDTHS.get(letter, 9.9 if letter.isupper() else 8.4) for letter in text)


def place(spots: Sequence[Spot], obstacles: Sequence[Box], area: Box) -> list[Label | None]:
    """Return the label of each spot, or None if there is no room for it.

    No name leaves the area, or touches another name or an obstacle such as a marker.
    """

    def crowding(index: int) -> int:
        here = spots[index]
        return sum(math.hypot(here.x - one.x, (here.y - one.y) * 2) < 60 for one in spots)

    taken = list(obstacles)
    found: dict[int, Label | None] = {}
    for index in sorted(range(len(spots)), key=lambda i: (-crowding(i), spots[i].y, i)):
        label = _first_free(spots[index], taken, area)
        found[index] = label
        if label:
            taken.append(_box(label.x, label.y, label.text))
            if label.leader:
                taken.extend(_beads(spots[index], label.leader))
    return [found[index] for index in range(len(spots))]


def stack(wanted: Sequence[tuple[float, float]], top: float, bottom: float) -> list[float]:
    """Move the boxes of one column apart, each as little as possible, and return their middles.

    Each box has a preferred middle and a height. A column that is too full extends below the
    bottom.
    """

    def edge_of(members: list[int], tall: float, begins: float) -> float:
        return max(top, min(begins / len(members), bottom - tall))

    # Blocks of touching boxes: members, height, and the sum of their preferred starts.
    blocks: list[tuple[list[int], float, float]] = []
    for index in sorted(range(len(wanted)), key=lambda i: wanted[i][0]):
        middle, height = wanted[index]
        block = [index], height, middle - height / 2
        while blocks and edge_of(*blocks[-1]) + blocks[-1][1] > edge_of(*block):
            members, tall, begins = block
            above, high, first = blocks.pop()
            block = above + members, high + tall, first + begins - high * len(members)
        blocks.append(block)
    places = [0.0] * len(wanted)
    for block in blocks:
        edge = edge_of(*block)
        for index in block[0]:
            places[index] = edge + wanted[index][1] / 2
            edge += wanted[index][1]
    return places


def boxes_along(corners: Sequence[tuple[float, float]]) -> list[Box]:
    """Return obstacles along a polyline of horizontal and vertical segments."""
    return [
        (min(x0, x1) - 1, min(y0, y1) - 1, max(x0, x1) + 1, max(y0, y1) + 1)
        for (x0, y0), (x1, y1) in itertools.pairwise(corners)
    ]


def _box(x: float, y: float, text: str) -> Box:
    return x - 1, y - HEIGHT + 3.5, x + text_width(text) + 1, y + 3


def _beads(spot: Spot, end: tuple[float, float]) -> list[Box]:
    """Return small boxes along the line from a point to its name, as obstacles for later names."""
    steps = max(2, int(math.hypot(end[0] - spot.x, end[1] - spot.y) / 5))
    points = [
        (spot.x + (end[0] - spot.x) * i / steps, spot.y + (end[1] - spot.y) * i / steps)
        for i in range(2, steps + 1)
    ]
    return [(x - 1.5, y - 1.5, x + 1.5, y + 1.5) for x, y in points]


def _first_free(spot: Spot, taken: list[Box], area: Box) -> Label | None:
    width = text_width(spot.text)
    beside = (
        (spot.x + 9, spot.y + 4),
        (spot.x - 9 - width, spot.y + 4),
        (spot.x - width / 2, spot.y - 10),
        (spot.x - width / 2, spot.y + 19),
        (spot.x + 7, spot.y - 7),
        (spot.x + 7, spot.y + 15),
        (spot.x - 7 - width, spot.y - 7),
        (spot.x - 7 - width, spot.y + 15),
    )
    for x, y in beside:
        if _free(_box(x, y, spot.text), taken, area):
            return Label(text=spot.text, x=x, y=y, leader=None)
    crossing: Label | None = None
    for radius, turn in itertools.product(range(20, 320, 6), range(24)):
        angle = math.tau * (turn * 7 % 24) / 24
        x = spot.x + radius * 1.3 * math.cos(angle) - width / 2
        y = spot.y + radius * math.sin(angle) + 4
        box = _box(x, y, spot.text)
        if _free(box, taken, area):
            end = (min(max(spot.x, box[0]), box[2]), min(max(spot.y, box[1]), box[3]))
            label = Label(text=spot.text, x=x, y=y, leader=end)
            # A leader may cross what is near its own point.
            beads = [
                bead
                for bead in _beads(spot, end)
                if math.hypot(bead[0] - spot.x, bead[1] - spot.y) > 14
            ]
            if not any(_touch(bead, other) for bead in beads for other in taken):
                return label
            crossing = crossing or label
    # A leader that crosses something is better than a point without a name.
    return crossing


def _free(box: Box, taken: list[Box], area: Box) -> bool:
    inside = box[0] >= area[0] and box[1] >= area[1] and box[2] <= area[2] and box[3] <= area[3]
    return inside and not any(_touch(box, other) for other in taken)


def _touch(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
