"""The picture of a study of scales: divergence against bits, one panel for each network."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkvary.reports.figure_style import Format, paper_style, save_figure
from qkvary.studies.scale_records import WAYS, ScaleStudy, StorageSummary

NAMES = {
    "g32": "by token",
    "g32-rot": "by token, rotated",
    "g32-r16": "by token, newest 16 as they are",
    "g32-r32": "by token, newest 32 as they are",
    "b32": "by channel",
    "b32-rot": "by channel, rotated",
    "b32-r16": "by channel, newest 16 to 47 as they are",
}
LOOKS = {
    "g32": ("#b4502d", "o", "-"),
    "g32-rot": ("#d99a2b", "s", "--"),
    "g32-r16": ("#7b5ea7", "^", "-."),
    "g32-r32": ("#c05a92", "<", ":"),
    "b32": ("#1f6f8b", "D", "-"),
    "b32-rot": ("#3a9d6f", "v", "--"),
    "b32-r16": ("#111111", "P", ":"),
}
SHIFT = 0.06
"""Bits between the marks of two storages with as many bits, so that whiskers can be told apart."""


def draw_scales(study: ScaleStudy, formats: Sequence[Format]) -> dict[str, bytes]:
    """The picture in every format, by file name."""
    with paper_style():
        columns = 2 if len(study.variants) > 1 else 1
        rows = math.ceil(len(study.variants) / columns)
        figure = Figure(figsize=(3.3 * columns, 2.2 * rows + 0.7), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        summaries = [one for one in study.summaries() if one.layout == "sources"]
        for axes, variant in zip(panels.flat, study.variants, strict=False):
            _draw(axes, [one for one in summaries if one.variant == variant])
            axes.set_title(variant, loc="left")
        for axes in panels[-1]:
            axes.set_xlabel("bits of a number, scales included")
        for axes in panels[:, 0]:
            axes.set_ylabel("mean KL, nats")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        return save_figure(figure, "divergence", formats)


def _draw(axes: Axes, summaries: Sequence[StorageSummary]) -> None:
    axes.set_yscale("log")
    axes.grid(visible=True, axis="y")
    for number, way in enumerate(WAYS):
        some = [one for one in summaries if one.scales == way and one.mean_kl.mean is not None]
        colour, marker, line = LOOKS[way]
        middles = [math.exp(one.mean_kl.mean or 0.0) for one in some]
        lows = [math.exp(_or(one.mean_kl.low, one.mean_kl.mean)) for one in some]
        highs = [math.exp(_or(one.mean_kl.high, one.mean_kl.mean)) for one in some]
        below = [middle - low for middle, low in zip(middles, lows, strict=True)]
        above = [high - middle for middle, high in zip(middles, highs, strict=True)]
        axes.errorbar(
            [one.bits + 1 + SHIFT * (number - 3) for one in some],
            middles,
            yerr=[below, above],
            color=colour,
            marker=marker,
            linestyle=line,
            markersize=3,
            elinewidth=0.7,
            label=NAMES[way],
        )
    ticks = sorted({one.bits + 1 for one in summaries})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.set_major_formatter(lambda value, _: f"1e{round(math.log10(value))}")


def _or(bound: float | None, middle: float | None) -> float:
    return (0.0 if middle is None else middle) if bound is None else bound
