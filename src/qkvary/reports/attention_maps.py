"""Draws attention maps as small images, and outlines the cells that hold the answer.

A map goes into the page as a PNG of 16 shades in a data URI.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from qkvary.reports import svg
from qkvary.reports.png import pixel_png
from qkvary.reports.report import Chart, Group
from qkvary.tasks.config_parts import TaskConfig
from qkvary.tasks.examples import AttentionExample
from qkvary.text import names

MOST_LAYERS, MOST_HEADS = 4, 4
"""Maximum number of layers and heads whose maps are drawn per example; the table has all."""
_TILE, _GAP = 76.0, 8.0
_OUTLINED = 24
"""Maximum number of tokens for which cells are outlined. In larger maps, outlines cover cells."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunAttention(AttentionExample):
    """The attention of one trained network on one example."""

    setting: str
    variant: str
    seed: int
    run_key: str
    """The key of the run."""
    right_cell: str = TaskConfig.right_cell
    """A description of the outlined cells, each of which holds the answer of its row."""


def map_group(
    examples: Sequence[RunAttention],
    *,
    title: str,
    detail: str,
    file: str,
) -> Group:
    """Return a group that shows the drawings of examples side by side."""
    charts = (
        Chart(draw=partial(drawing, one), caption=one.variant, detail=f"seed {one.seed}")
        for one in examples
    )
    return Group(title=title, detail=detail, blocks=tuple(charts), layout="maps", file=file)


def drawing(example: RunAttention) -> svg.Drawing:
    """Draw the maps of an example: one row per layer, one column per head."""
    layers = range(min(example.maps.shape[0], MOST_LAYERS))
    heads = min(example.maps.shape[1], MOST_HEADS)
    size = f"{len(layers)} layers, {heads} heads, {example.maps.shape[-1]} tokens"
    return draw_maps(
        example.maps,
        layers,
        title=f"Attention of {names.short(example.variant, 60)}, seed {example.seed}",
        description=f"{size}. Rows are queries.",
        targets=example.targets,
    )


def draw_maps(
    maps: NDArray[np.floating[Any]],
    layers: Sequence[int],
    *,
    title: str,
    description: str,
    targets: Sequence[int | None] = (),
) -> svg.Drawing:
    """Draw the first heads of some layers of maps, ``[layers, heads, rows, columns]``.

    ``targets`` has the column to outline in each row.
    """
    step, half = _TILE + _GAP, _TILE / 2
    columns = [18 + head * step for head in range(min(maps.shape[1], MOST_HEADS))]
    parts = [
        svg.text(x + half, 12, f"head {head}", "tick middle")
        for head, x in enumerate(columns, start=1)
    ]
    for row, layer in enumerate(layers):
        y = 18 + row * step
        turned = f"rotate(-90 10 {svg.number(y + half)})"
        parts.append(svg.text(10, y + half, f"layer {layer + 1}", "tick middle", transform=turned))
        for head, x in enumerate(columns):
            parts.extend(_tile(maps[layer, head], targets, x, y))
    return svg.Drawing(
        width=18 + len(columns) * step,
        height=18 + len(layers) * step,
        title=title,
        description=description,
        parts=tuple(parts),
    )


def _tile(
    values: NDArray[np.floating[Any]], targets: Sequence[int | None], x: float, y: float
) -> list[Markup]:
    rows, columns = values.shape
    picture, size = png(shades(values)), (_TILE, _TILE)
    image = svg.image(picture, (x, y), size, "map", is_stretched=rows != columns)
    parts = [image, svg.element("rect", x=x, y=y, width=_TILE, height=_TILE, class_="map-frame")]
    if max(rows, columns) <= _OUTLINED:
        wide, high = _TILE / columns, _TILE / rows
        outline = "".join(
            f"M{svg.number(x + column * wide)} {svg.number(y + row * high)}"
            f"h{svg.number(wide)}v{svg.number(high)}h-{svg.number(wide)}z"
            for row, column in enumerate(targets[:rows])
            if column is not None and 0 <= column < columns
        )
        if outline:
            parts.append(svg.element("path", d=outline, class_="right-cell"))
    return parts


def shades(values: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Map weights (0 to 1) to shades (0 to 15); the square root keeps small weights visible."""
    usable = np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0)
    return np.rint(np.sqrt(np.clip(usable, 0.0, 1.0)) * 15).astype(np.uint8)


def png(indices: NDArray[np.uint8]) -> bytes:
    """Return a PNG of shades: white for 0, dark blue for 15."""
    places = np.linspace(0, 1, 16)
    channels = [np.interp(places, (0, 0.35, 0.7, 1), stops) for stops in _STOPS]
    return pixel_png(np.rint(np.stack(channels)).astype(np.uint8)[:, indices])


_STOPS = ((252, 190, 58, 8), (253, 217, 128, 42), (254, 236, 186, 86))
"""Red, green and blue of four shades."""
