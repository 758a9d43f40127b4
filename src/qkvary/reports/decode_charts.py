"""The charts of a measurement of decoding as inline SVG: speed, and the parts of memory.

Only positions are computed here.
"""

from collections.abc import Sequence

from markupsafe import Markup

from qkvary.arch.published_quality import BASELINE
from qkvary.inference.benchmark.comparisons import Speed, describe_workload
from qkvary.inference.benchmark.records import MemoryRow, Runner
from qkvary.reports import label_placement, svg
from qkvary.reports.variant_styles import Family, family_of, mark
from qkvary.text import numbers, units
from qkvary.text.names import clip, short

WIDTH = 400.0
ROW = 30.0
TOP, BOTTOM = 30.0, 44.0
NAME_LENGTH = 26
"""Maximum letters of a name beside a row."""


def speed_chart(speeds: Sequence[Speed]) -> svg.Drawing:
    """Draw tokens per second of every runner of one case, a row for each variant.

    Filled marks are this project with its caches, hollow ones transformers, and upright lines
    running the prefix again.
    """
    variants = list(dict.fromkeys(speed.row.case.variant for speed in speeds))
    left = _margin(variants)
    bottom = TOP + len(variants) * ROW
    rates = [speed.tokens_per_second for speed in speeds]
    low, high = svg.padded([end for rate in rates for end in (rate.low, rate.high)], 0.05, True)
    across = svg.Scale(low=low, high=high, start=left, end=WIDTH - 14, logarithmic=True)
    parts = [
        svg.x_axis(across, bottom, numbers.tick, 5, top=TOP),
        svg.text(WIDTH - 14, bottom + BOTTOM - 8, "tokens per second", "axis-title end"),
    ]
    for index, variant in enumerate(variants):
        y = TOP + (index + 0.5) * ROW
        family = family_of(variant, BASELINE)
        parts.append(svg.text(8, y + 4, short(variant, NAME_LENGTH), f"name t-{family.key}"))
        for speed in speeds:
            if speed.row.case.variant == variant:
                parts += _draw_rate(speed, family, across, y)
    case = speeds[0].row.case
    description = "; ".join(
        f"{speed.row.case.variant} {_describe_runner(speed.row.runner)} "
        f"{numbers.real(speed.tokens_per_second.value)}"
        for speed in speeds
    )
    return svg.Drawing(
        width=WIDTH,
        height=bottom + BOTTOM,
        title=f"Tokens per second, {describe_workload(case)}",
        description=clip(f"{description}.", 1200),
        parts=tuple(parts),
    )


def memory_chart(rows: Sequence[MemoryRow]) -> svg.Drawing:
    """Draw the parts of the memory of an answer: weights, cache, and temporary tensors."""
    names = [name_memory(row) for row in rows]
    left = _margin(names)
    bottom = TOP + len(rows) * ROW
    most = max(row.total_bytes for row in rows)
    across = svg.Scale(low=0.0, high=most * 1.04, start=left, end=WIDTH - 14)
    unit = 2**20
    shown = svg.Scale(low=0.0, high=most * 1.04 / unit, start=left, end=WIDTH - 14)
    parts = [
        svg.x_axis(shown, bottom, numbers.tick, 5, top=TOP),
        svg.text(WIDTH - 14, bottom + BOTTOM - 8, "MiB", "axis-title end"),
    ]
    for index, (row, label) in enumerate(zip(rows, names, strict=True)):
        y = TOP + index * ROW
        family = family_of(row.case.variant, BASELINE)
        parts.append(svg.text(8, y + ROW / 2 + 4, label, f"name t-{family.key}"))
        parts += _draw_memory(row, across, y + 6, ROW - 12)
    description = "; ".join(
        f"{label}: weights {units.data_size(row.weight_bytes)}, cache "
        f"{units.data_size(row.cache_bytes)}, peak of the answer "
        f"{units.data_size(row.answer_bytes)}"
        for row, label in zip(rows, names, strict=True)
    )
    return svg.Drawing(
        width=WIDTH,
        height=bottom + BOTTOM,
        title=f"Memory, {describe_workload(rows[0].case)}",
        description=clip(f"{description}.", 1200),
        parts=tuple(parts),
    )


def name_memory(row: MemoryRow) -> str:
    """Return the variant and runner, short enough for a row."""
    kind = row.runner if row.cache is None else row.cache.layout
    return short(f"{row.case.variant}, {kind}", NAME_LENGTH)


def _draw_rate(speed: Speed, family: Family, across: svg.Scale, y: float) -> list[Markup]:
    rate = speed.tokens_per_second
    x, ends = across(rate.value), (across(rate.low), across(rate.high))
    parts = [svg.line((ends[0], y), (ends[1], y), f"whisker f-{family.key}")]
    if speed.row.runner == "prefix":
        return [*parts, svg.line((x, y - 7), (x, y + 7), f"seed f-{family.key}")]
    hollow = speed.row.runner != "cache"
    size = 3.4 if speed.row.runner == "transformers-static" else 5.0
    return [*parts, mark(family, x, y, size, hollow=hollow)]


def _draw_memory(row: MemoryRow, across: svg.Scale, y: float, height: float) -> list[Markup]:
    """Draw three adjacent boxes."""
    momentary = max(0, row.answer_bytes - row.cache_bytes)
    parts: list[Markup] = []
    start = 0.0
    for size, kind in (
        (row.weight_bytes, "box"),
        (row.cache_bytes, "box kept"),
        (momentary, "taken"),
    ):
        x, end = across(start), across(start + size)
        start += size
        parts.append(svg.element("rect", x=x, y=y, width=end - x, height=height, class_=kind))
    return parts


def _margin(names: Sequence[str]) -> float:
    widest = max(label_placement.text_width(short(name, NAME_LENGTH)) for name in names)
    return min(WIDTH / 2, widest + 18)


def _describe_runner(runner: Runner) -> str:
    return {
        "cache": "with its cache",
        "prefix": "running the prefix again",
        "transformers": "in transformers",
        "transformers-static": "in transformers with its static cache",
    }[runner]
