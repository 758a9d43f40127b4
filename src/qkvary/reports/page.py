"""The page of a study: one HTML file that needs nothing else and says the same thing every time.

Words and figures come from the summary, drawings from the chart modules, layout from ``template/``.
No text reaches the page unescaped: ``documents`` escapes, and ``svg`` escapes what it draws.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from qkvary.literature.quality import qualities
from qkvary.planning.pictures import SIZES
from qkvary.reports import contents, listings
from qkvary.reports.blocks import Block, block
from qkvary.reports.charts import (
    AXIS_TITLES,
    difference_chart,
    frontier_chart,
    solving_chart,
)
from qkvary.reports.curves import Panels, headline_quantities, panels
from qkvary.reports.documents import moment, render_document
from qkvary.reports.families import key_of_families, present
from qkvary.reports.maps import AttentionMaps, best, card_width, chance, drawing
from qkvary.reports.published_quality import PublishedSection, show_published
from qkvary.reports.tables import Table
from qkvary.studies.results.summary import (
    CostAxis,
    Frontier,
    LearningCurve,
    ResultTable,
    RunRow,
    Summary,
)
from qkvary.text import numbers, units

MOST_PANELS = 320
"""Panels of learning curves in one page, each over steps and over seconds; the CSV has all."""
SCHEMA_VERSION = 1

_TRAINING = "train loss"
_RIGHT_CELLS = {
    "reverse": "the flipped index",
    "copy": "the position itself",
    "sub": "the position itself",
    "swap": "the position half a sequence away",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing with the table behind it."""

    caption: str
    drawing: Markup
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSection:
    """All charts of quality against one cost."""

    title: str
    long_title: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSection:
    """The learning curves of one setting: ``views`` are quantity by axis."""

    setting: str
    views: tuple[tuple[int, int, Panels], ...]
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class MapCard:
    """The attention of one variant in one setting."""

    variant: str
    words: str
    drawing: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSection:
    """The attention of all variants in one setting."""

    setting: str
    right_cell: str
    uniform: str
    width: int
    """Pixels of the narrowest column that can be read."""
    cards: tuple[MapCard, ...]


def render_page(summary: Summary, attention: Sequence[AttentionMaps]) -> str:
    """Write the page.

    Args:
        summary: What the study found.
        attention: One example for each setting and variant that has one.

    Returns:
        The HTML document; equal arguments give equal text.
    """
    view = _view(summary, attention)
    # Every <, > and & in the data is escaped.
    return render_document("page.html.j2", {**view, "data": Markup(_json(summary))})  # noqa: S704


def _view(summary: Summary, attention: Sequence[AttentionMaps]) -> Mapping[str, Any]:
    tables = contents.main_tables(summary)
    curves, hidden = _curve_sections(summary)
    return {
        "summary": summary,
        "facts": _facts(summary),
        "families": key_of_families(present(summary.variants, summary.baseline)),
        "overview": contents.matrix(summary),
        "contrasts": contents.contrast_table(summary, "contrasts"),
        "differences": [
            difference_chart(table, summary.baseline, f"difference-{index}")
            for index, table in enumerate(tables)
            if any(row.difference for row in table.rows)
        ],
        "results": [
            contents.result_table(table, summary, f"results-{index}")
            for index, table in enumerate(summary.tables)
        ],
        "costs": _cost_sections(summary, tables),
        "solving": _solving_charts(summary, tables),
        "curves": curves,
        "hidden_curves": hidden,
        "maps": _map_sections(summary, attention),
        "map_table": listings.attention_table(attention, "attention"),
        "blocks": _blocks(summary),
        "cost_table": contents.cost_table(tables, "costs"),
        "published": [
            listings.published_table(comparison, f"published-{index}")
            for index, comparison in enumerate(summary.published)
        ],
        "language_models": _language_models(summary),
        "learning_rates": listings.learning_rate_table(summary, "learning-rates"),
        "problems": listings.problem_table(summary.runs, "problems"),
        "runs": listings.run_table(summary.runs, "runs", "All runs"),
        "environments": _environments(summary),
        "digest": store_digest(summary.runs),
        "seeds_text": [str(seed) for seed in summary.seeds],
        "runs_text": f"Runs done of those planned: {contents.count_words(summary.counts)}.",
    }


def _language_models(summary: Summary) -> PublishedSection | None:
    """What was published about variants of this study, if it trains networks that keep a cache."""
    decodes = any(one.points and one.axis == "cache_bytes_per_token" for one in summary.frontiers)
    trained = {quality.variant for size in SIZES for quality in qualities(size)}
    known = trained & set(summary.variants) - {summary.baseline}
    return show_published(SIZES, "language-models") if decodes and known else None


def _facts(summary: Summary) -> list[tuple[str, str]]:
    tasks = list(dict.fromkeys(run.task for run in summary.runs))
    facts = [
        ("runs", contents.count_words(summary.counts)),
        ("variants", numbers.whole(len(summary.variants))),
        ("tasks", numbers.whole(len(tasks))),
        ("seeds", numbers.whole(len(summary.seeds))),
        ("training time", units.duration(summary.training_seconds)),
    ]
    if summary.ended:
        facts.append(("last run ended", moment(summary.ended)))
    return facts


def _cost_sections(summary: Summary, tables: Sequence[ResultTable]) -> list[CostSection]:
    wanted = {table.name for table in tables}
    groups: dict[CostAxis, list[Frontier]] = {}
    for frontier in summary.frontiers:
        if frontier.table in wanted and frontier.points:
            groups.setdefault(frontier.axis, []).append(frontier)
    return [
        CostSection(
            title=AXIS_TITLES[axis],
            long_title=frontiers[0].axis_title,
            charts=tuple(
                Chart(
                    caption=frontier.table,
                    drawing=frontier_chart(frontier, summary.baseline, f"frontier-{axis}-{index}"),
                    table=contents.frontier_table(frontier, f"frontier-{axis}-{index}"),
                )
                for index, frontier in enumerate(frontiers)
            ),
        )
        for axis in AXIS_TITLES
        if (frontiers := groups.get(axis))
    ]


def _solving_charts(summary: Summary, tables: Sequence[ResultTable]) -> list[Chart]:
    return [
        Chart(
            caption=table.name,
            drawing=solving_chart(table, summary.runs, summary.baseline, f"solving-{index}"),
            table=contents.solving_table(table, f"solving-{index}"),
        )
        for index, table in enumerate(tables)
        if table.kind != "average" and any(row.solving for row in table.rows)
    ]


def _curve_sections(summary: Summary) -> tuple[list[CurveSection], int]:
    by_setting: dict[str, list[LearningCurve]] = {}
    for curve in summary.curves:
        by_setting.setdefault(curve.setting, []).append(curve)
    headlines = headline_quantities(summary)
    sections: list[CurveSection] = []
    used = hidden = 0
    for index, (setting, curves) in enumerate(by_setting.items()):
        chosen = _chosen_quantities(curves, headlines[setting])
        used += sum(curve.quantity in chosen for curve in curves)
        if used > MOST_PANELS and sections:
            hidden += 1
            continue
        sections.append(_curve_section(setting, curves, chosen, summary, f"curve-{index}"))
    return sections, hidden


def _chosen_quantities(curves: Sequence[LearningCurve], headline: str) -> list[str]:
    there = {curve.quantity for curve in curves}
    return [headline] + ([_TRAINING] if _TRAINING in there and headline != _TRAINING else [])


def _curve_section(
    setting: str,
    curves: Sequence[LearningCurve],
    chosen: Sequence[str],
    summary: Summary,
    name: str,
) -> CurveSection:
    views: list[tuple[int, int, Panels]] = []
    for place, quantity in enumerate(chosen):
        some = [curve for curve in curves if curve.quantity == quantity and curve.steps]
        if not some:
            continue
        for number, axis in enumerate(("steps", "seconds")):
            drawn = panels(some, axis, summary.baseline, f"{name}-{place}-{axis}")
            views.append((place + 1, number + 1, drawn))
    kept = [curve for curve in curves if curve.quantity in chosen]
    return CurveSection(
        setting=setting,
        views=tuple(views),
        table=listings.curve_table(kept, f"{name}-table", f"{setting}: learning curves", 5),
    )


def _map_sections(summary: Summary, attention: Sequence[AttentionMaps]) -> list[MapSection]:
    tasks = {run.setting: run.task for run in summary.runs}
    groups: dict[str, list[AttentionMaps]] = {}
    for example in attention:
        groups.setdefault(example.setting, []).append(example)
    sections: list[MapSection] = []
    for number, (setting, examples) in enumerate(groups.items()):
        aims = any(best(example) for example in examples)
        sections.append(
            MapSection(
                setting=setting,
                right_cell=_RIGHT_CELLS.get(tasks.get(setting, ""), "the cell with the answer")
                if aims
                else "",
                uniform=numbers.percent(chance(examples[0])),
                width=card_width(examples),
                cards=tuple(
                    MapCard(
                        variant=example.variant,
                        words=_map_words(example),
                        drawing=drawing(example, f"map-{number}-{index}"),
                    )
                    for index, example in enumerate(examples)
                ),
            )
        )
    return sections


def _map_words(example: AttentionMaps) -> str:
    most = best(example)
    if most is None:
        return f"seed {example.seed}"
    return f"{numbers.percent(most.mass, 0)} in layer {most.layer + 1}, head {most.head + 1}"


def _blocks(summary: Summary) -> list[Block]:
    drawn = (block(label, f"block-{index}") for index, label in enumerate(summary.variants))
    return [one for one in drawn if one is not None]


def _environments(summary: Summary) -> list[tuple[str, list[str]]]:
    keys = list(dict.fromkeys(key for machine in summary.environments for key, _ in machine))
    return [
        (key, [dict(machine).get(key, numbers.MISSING) for machine in summary.environments])
        for key in keys
    ]


def store_digest(runs: Sequence[RunRow]) -> str:
    """Return a fingerprint of the records behind the page: every run, its state, its metrics."""
    content = [
        (run.run_key, run.state, [(name, repr(value)) for name, value in run.metrics])
        for run in runs
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _json(summary: Summary) -> str:
    """Write the summary for programs, without the curves, safe inside a script element."""
    fields = dataclasses.asdict(dataclasses.replace(summary, curves=()))
    fields.pop("curves")
    text = json.dumps({"schema_version": SCHEMA_VERSION, **_finite(fields)}, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """Replace what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
