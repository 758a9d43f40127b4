"""The charts of an analysis as SVG: likeness of key and value, forecasts, and joint spectra."""

import math
from collections.abc import Sequence
from functools import partial

from qkvary.analysis.findings import is_uncertain
from qkvary.analysis.results import LayerAnalysis
from qkvary.reports import svg
from qkvary.reports.variant_styles import FAMILIES, mark
from qkvary.text import numbers
from qkvary.text.names import clip

WIDTH = 440.0
TOP, BOTTOM = 34.0, 40.0
MOST_PANELS = 12
_PANEL_WIDTH, _PANEL_HEIGHT = 212.0, 148.0
_LEAST = 1e-6
"""The smallest value that is drawn: energy of a spectrum, or forecast in nats."""
_FOUND = FAMILIES[1]


def layers_chart(layers: Sequence[LayerAnalysis]) -> svg.Drawing:
    """Draw two columns, a row for each layer: the explained share, and the forecast."""
    row = max(13.0, min(26.0, 360.0 / len(layers)))
    bottom = TOP + len(layers) * row
    alike = svg.Scale(low=0.0, high=1.0, start=58.0, end=226.0)
    forecasts = [max(layer.forecast, _LEAST) for layer in layers]
    low, high = svg.padded(forecasts, 0.08, True)
    cost = svg.Scale(low=low, high=high, start=272.0, end=WIDTH - 16, logarithmic=True)
    parts = [
        svg.text(58, 14, "value explained by the key", "panel-title"),
        svg.text(272, 14, "forecast, nats per token", "panel-title"),
        svg.x_axis(alike, bottom, partial(numbers.percent, decimals=0), 4, top=TOP),
        svg.x_axis(cost, bottom, _write_nats, 3, top=TOP),
    ]
    for index, layer in enumerate(layers):
        y = TOP + (index + 0.5) * row
        if len(layers) <= 28 or index % 4 == 0:
            parts.append(svg.text(50, y + 4, f"layer {layer.number}", "tick end"))
        x, chance = alike(layer.explained), alike(layer.explained_chance)
        parts.append(svg.line((chance, y), (x, y), f"bar f-{_FOUND.key}"))
        parts.append(svg.line((chance, y - row / 3), (chance, y + row / 3), "reference"))
        parts.append(mark(_FOUND, x, y, 4.2))
        hollow = is_uncertain(layer)
        parts.append(mark(_FOUND, cost(max(layer.forecast, _LEAST)), y, 4.2, hollow=hollow))
    description = "; ".join(
        f"layer {layer.number}: {numbers.percent(layer.explained, 0)} (random "
        f"{numbers.percent(layer.explained_chance, 0)}), {numbers.real(layer.forecast, 2)} nats"
        for layer in layers
    )
    return svg.Drawing(
        width=WIDTH,
        height=bottom + BOTTOM - 14,
        title="How alike key and value are, and what tying them would cost, by layer",
        description=clip(f"{description}.", 1200),
        parts=tuple(parts),
    )


def spectrum_chart(layer: LayerAnalysis) -> svg.Drawing:
    """Draw the energy that is lost if only a given number of directions is kept.

    There is one line for each KV head of a layer.
    """
    joint = max(len(head.spectrum) for head in layer.key_values)
    plot = svg.Plot(
        svg.Scale(low=0, high=joint, start=40, end=_PANEL_WIDTH - 8),
        svg.Scale(low=_LEAST, high=1, start=_PANEL_HEIGHT - 20, end=24, logarithmic=True),
    )
    left, top, _, bottom = plot.area
    size = plot.across(joint / 2)
    parts = [
        svg.text(left, 14, f"layer {layer.number}", "panel-title"),
        plot.cover("plot"),
        *plot.rows((1.0, 1e-2, 1e-4, 1e-6), _power),
        *(
            svg.text(plot.across(value), bottom + 14, numbers.tick(value), "tick middle")
            for value in plot.across.ticks(4)
        ),
        svg.line((size, top), (size, bottom), "limit"),
    ]
    for head in layer.key_values:
        kept, points = 1.0, [plot.point(0, 1.0)]
        for place, value in enumerate(head.spectrum, start=1):
            kept -= value**2
            points.append(plot.point(place, max(kept, _LEAST)))
        parts.append(svg.path(points, f"curve f-{_FOUND.key}"))
    lost = max(head.lost for head in layer.key_values)
    return svg.Drawing(
        width=_PANEL_WIDTH,
        height=_PANEL_HEIGHT,
        title=f"Joint spectrum of layer {layer.number}",
        description=f"If only the first {joint / 2:g} of the {joint} directions are kept, at most "
        f"{numbers.percent(lost)} of the energy is lost.",
        parts=tuple(parts),
    )


def _power(value: float) -> str:
    """Write a power of ten."""
    exponent = round(math.log10(value))
    return numbers.ten_to_the(exponent) if exponent else "1"


def _write_nats(value: float) -> str:
    first = f"{value:.0e}"[0]
    if value >= 1e-3:
        return numbers.tick(value)
    power = _power(10.0 ** math.floor(math.log10(value) + 1e-9))
    return power if first == "1" else f"{first}·{power}"
