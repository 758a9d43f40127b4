"""The charts of a study as figures fit for a paper: SVG, PNG and PDF through matplotlib.

Equal summaries give equal bytes.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from qkvary.reports import contents, labelling, svg
from qkvary.reports.charts import (
    AXIS_TITLES,
    TICKS,
    apart,
    better_word,
    error_bar,
    staircase,
)
from qkvary.reports.curves import headline_quantities
from qkvary.reports.families import Family, family_of
from qkvary.reports.figure_style import Format, paper_style, save_figure
from qkvary.reports.maps import AttentionMaps, best, shades
from qkvary.studies.results.summary import (
    Frontier,
    FrontierPoint,
    LearningCurve,
    ResultTable,
    Summary,
)
from qkvary.text import names


def figure_files(
    summary: Summary, attention: Sequence[AttentionMaps], formats: Sequence[Format]
) -> dict[str, bytes]:
    """Return every figure in every format by file name."""
    files: dict[str, bytes] = {}
    if not formats:
        return files
    with paper_style():
        for name, figure in _figures(summary, attention):
            files |= save_figure(figure, name, formats)
    return files


def _figures(summary: Summary, attention: Sequence[AttentionMaps]) -> Iterator[tuple[str, Figure]]:
    tables = contents.main_tables(summary)
    compared = [table for table in tables if any(row.difference for row in table.rows)]
    if compared:
        yield "differences", _differences(compared, summary)
    wanted = {table.name for table in tables}
    shown = [chart for chart in summary.frontiers if chart.table in wanted and chart.points]
    for index, chart in enumerate(shown):
        axis = names.slug(chart.axis)
        yield (
            f"frontier-{index + 1:02d}-{names.slug(chart.table)}-{axis}",
            _frontier(chart, summary),
        )
    groups: dict[tuple[str, str], list[LearningCurve]] = {}
    for curve in summary.curves:
        groups.setdefault((curve.setting, curve.quantity), []).append(curve)
    headlines = headline_quantities(summary)
    followed = {key: group for key, group in groups.items() if headlines[key[0]] == key[1]}
    for index, ((setting, quantity), curves) in enumerate(followed.items()):
        name = f"curves-{index + 1:02d}-{names.slug(setting)}-{names.slug(quantity)}"
        yield name, _curves(curves, summary)
    if attention:
        yield "attention", _attention(attention)


def _write(text: str, length: int = 34) -> str:
    return names.clean(names.short(text, length))


def _differences(tables: Sequence[ResultTable], summary: Summary) -> Figure:
    labels = [label for label in summary.variants if label != summary.baseline]
    size = (1.55 * len(tables) + 0.8, 0.2 * len(labels) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    plots = figure.subplots(1, len(tables), squeeze=False, sharey=True)[0]
    for plot, table in zip(plots, tables, strict=True):
        _difference_panel(plot, table, labels, summary.baseline)
    return figure


def _difference_panel(plot: Axes, table: ResultTable, labels: Sequence[str], baseline: str) -> None:
    plot.axvline(0, color="#1f2933", linewidth=0.6)
    plot.grid(axis="x")
    for place, label in enumerate(labels):
        gap = next((row.difference for row in table.rows if row.variant == label), None)
        family = family_of(label, baseline)
        if gap is None or gap.mean is None:
            continue
        if gap.low is not None and gap.high is not None:
            plot.plot([gap.low, gap.high], [place, place], color=family.light, linewidth=0.8)
        if gap.low_single is not None and gap.high_single is not None:
            ends = [gap.low_single, gap.high_single]
            plot.plot(ends, [place, place], color=family.light, linewidth=2.2, alpha=0.55)
        _point(plot, gap.mean, place, family, filled=gap.verdict in {"better", "worse"})
    plot.set_yticks(range(len(labels)), [_write(label, 16) for label in labels])
    plot.set_ylim(len(labels) - 0.4, -0.6)
    plot.tick_params(axis="y", length=0)
    plot.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    plot.set_title(_write(table.name, 22), loc="left")
    metric = _write(contents.metric_name(table.metric))
    plot.set_xlabel(f"difference in\n{metric}\n({better_word(table.higher_is_better)})")


def _point(
    plot: Axes, x: float, y: float, family: Family, *, filled: bool, transform: Any = None
) -> None:
    plot.plot(
        x,
        y,
        family.matplotlib_marker,
        color=family.light,
        markerfacecolor=family.light if filled else "white",
        markersize=4.5,
        transform=plot.transData if transform is None else transform,
    )


def _frontier(chart: Frontier, summary: Summary) -> Figure:
    figure = Figure(figsize=(3.4, 2.6), layout="constrained")
    plot = figure.subplots()
    points = [one for one in chart.points if math.isfinite(one.cost) and math.isfinite(one.quality)]
    costs = [point.cost for point in points]
    steep = bool(costs) and min(costs) > 0 and max(costs) / min(costs) > 6
    plot.set_xscale("log" if steep else "linear")
    plot.set_xlim(*svg.padded(costs, 0.1, steep))
    ends = [end for point in points for end in (error_bar(point) or (point.quality,))]
    plot.set_ylim(*svg.padded([*ends, *(point.quality for point in points)], 0.08))
    low, high = plot.get_xlim()
    binary = chart.axis == "cache_bytes_per_token"
    scale = svg.Scale(low=low, high=high, start=0, end=1, logarithmic=steep, binary=binary)
    ticks = scale.ticks(4)
    plot.set_xticks(ticks, [TICKS[chart.axis](tick) for tick in ticks])
    plot.set_xticks([], minor=True)
    plot.grid(axis="y")
    plot.set_xlabel(AXIS_TITLES[chart.axis])
    metric = _write(contents.metric_name(chart.metric))
    plot.set_ylabel(f"{metric} ({better_word(chart.higher_is_better)})")
    plot.set_title(_write(chart.table, 40), loc="left")
    _fill_frontier(figure, plot, points, summary.baseline)
    return figure


def _fill_frontier(
    figure: Figure, plot: Axes, points: Sequence[FrontierPoint], baseline: str
) -> None:
    """Draw points, bars and names as on the page: in its pixels, mapped onto the axes."""
    figure.draw_without_rendering()
    box = plot.get_window_extent()
    pixels = 1.6 * 72 / figure.dpi
    width, height = box.width * pixels, box.height * pixels

    def place_of(cost: float, quality: float) -> tuple[float, float]:
        shown = plot.transData.transform((cost, quality))
        across, up = plot.transAxes.inverted().transform(shown)
        return float(across) * width, (1 - float(up)) * height

    def draw(places: Sequence[tuple[float, float]], **look: Any) -> None:
        across, up = [x / width for x, _ in places], [1 - y / height for _, y in places]
        plot.plot(across, up, transform=plot.transAxes, **look)

    front = sorted((p.cost, p.quality) for p in points if p.standing == "frontier")
    corners = staircase([place_of(*one) for one in front], width)
    draw(corners, color="#7b8794", linewidth=0.9, zorder=1)
    moved = apart([place_of(point.cost, point.quality) for point in points])
    for point, (x, y) in zip(points, moved, strict=True):
        family = family_of(point.variant, baseline)
        for end in error_bar(point) or ():
            look = {"color": family.light, "linewidth": 0.7, "alpha": 0.6}
            draw([(x, y), (x, place_of(point.cost, end)[1])], **look)
        filled = point.standing == "frontier"
        across, up = x / width, 1 - y / height
        _point(plot, across, up, family, filled=filled, transform=plot.transAxes)
    spots = [
        labelling.Spot(text=_write(point.variant, 22), x=x, y=y)
        for point, (x, y) in zip(points, moved, strict=True)
    ]
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in moved] + labelling.boxes_along(corners)
    labels = labelling.place(spots, taken, (0, 0, width, height))
    for point, spot, label in zip(points, spots, labels, strict=True):
        if label is None:
            continue
        if label.leader:
            draw([(spot.x, spot.y), label.leader], color="#9aa5b1", linewidth=0.4, zorder=0)
        plot.text(
            label.x / width,
            1 - label.y / height,
            label.text,
            transform=plot.transAxes,
            fontsize=6,
            color=family_of(point.variant, baseline).light,
            path_effects=[withStroke(linewidth=1.2, foreground="white")],
        )


def _curves(curves: Sequence[LearningCurve], summary: Summary) -> Figure:
    columns = min(len(curves), 6)
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(1.2 * columns, 1.1 * rows + 0.3), layout="constrained")
    plots = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    behind = next((curve for curve in curves if curve.variant == summary.baseline), None)
    for plot, curve in zip(plots, curves, strict=False):
        family = family_of(curve.variant, summary.baseline)
        if behind is not None and behind is not curve:
            plot.plot(behind.steps, behind.mean, color="#9aa5b1", linewidth=0.8)
        plot.fill_between(
            curve.steps, curve.low, curve.high, color=family.light, alpha=0.2, linewidth=0
        )
        plot.plot(curve.steps, curve.mean, color=family.light)
        plot.set_title(_write(curve.variant, 18), loc="left", color=family.light)
        plot.grid(axis="y")
    for plot in plots[len(curves) :]:
        plot.set_visible(False)
    figure.supxlabel("steps", fontsize=7)
    figure.supylabel(_write(f"{curves[0].setting}: {curves[0].quantity}", 44), fontsize=7)
    return figure


def _attention(examples: Sequence[AttentionMaps]) -> Figure:
    """Draw one map for each setting and variant: the head with the most mass on the right cells."""
    settings = list(dict.fromkeys(example.setting for example in examples))
    variants = list(dict.fromkeys(example.variant for example in examples))
    figure = Figure(
        figsize=(0.85 * len(variants) + 0.3, 0.95 * len(settings) + 0.2), layout="constrained"
    )
    plots = figure.subplots(len(settings), len(variants), squeeze=False)
    found = {(example.setting, example.variant): example for example in examples}
    for row, setting in enumerate(settings):
        for column, variant in enumerate(variants):
            plot = plots[row, column]
            plot.set_xticks([])
            plot.set_yticks([])
            if row == 0:
                plot.set_title(_write(variant, 14), fontsize=6)
            if column == 0:
                plot.set_ylabel(_write(setting, 18), fontsize=6)
            example = found.get((setting, variant))
            if example is None:
                plot.set_visible(False)
                continue
            most = best(example)
            layer, head = (most.layer, most.head) if most else (example.maps.shape[0] - 1, 0)
            picture = 255 - shades(np.asarray(example.maps[layer, head]))
            plot.imshow(picture, cmap="Blues_r", vmin=0, vmax=255, interpolation="nearest")
    return figure
