"""The report of the papers' figures, drawn from the runs that exist."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from qkvary.papers import figure_charts as paper_charts
from qkvary.papers.figure_records import StudyRecords
from qkvary.papers.paper_figures import FigureKind, Panel, PaperFigure, Records
from qkvary.papers.tables import load_published
from qkvary.planning.advice import collect_caveats
from qkvary.planning.curves import compute_quality_points
from qkvary.reports import attention_maps
from qkvary.reports.attention_maps import RunAttention
from qkvary.reports.learning_curves import count_runs, curves_chart
from qkvary.reports.plan_charts import quality_chart
from qkvary.reports.plan_tables import quality_table
from qkvary.reports.report import Block, Bullets, Chart, Code, Group, Prose, Report, Section
from qkvary.reports.run_tables import PRECISE, curve_table
from qkvary.reports.samples import RunSamples, set_drawing
from qkvary.reports.tables import Table, label, number, pick, tabulate, word
from qkvary.reports.variant_diagrams import diagram
from qkvary.studies.published_tables import PublishedColumn
from qkvary.studies.results.summary import LearningCurve
from qkvary.text import names, numbers
from qkvary.text.numbers import MISSING

T = TypeVar("T")
ReadRecords = Callable[[str], StudyRecords]
"""Function that returns the records of a study, given the name of the study."""

_WITHOUT_RUNS: Mapping[FigureKind, str] = {
    "diagonal": "random keys",
    "blocks": "the variants",
    "printed": "published numbers",
    "transfer": paper_charts.TRANSFER,
}
"""Sources of the kinds of figures that are drawn without runs."""
_KEYS_DRAWN, _CHANNELS = 10, 30
"""Number of keys and of channels in the example of paper 1's figure 5."""
_DIAGONAL_CODE = (
    "scores = keys @ keys.T",
    "diagonal = scores.diagonal()",
    "numpy.fill_diagonal(scores, diagonal / diagonal.mean())",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A figure with the panels for which records exist."""

    blocks: tuple[Block, ...]
    records: tuple[Records, ...] = ()
    """The records from which the figure is drawn."""
    missing: tuple[Panel, ...] = ()
    """The panels of the figure without records."""
    curves: tuple[LearningCurve, ...] = ()
    is_part: bool = False
    """True if some of the published runs are missing, or if runs differ from the published runs."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The studies from which the figure is drawn."""
        return tuple(dict.fromkeys(one.study for one in self.records))


def paper_report(figures: Sequence[PaperFigure], read: ReadRecords) -> Report:
    """Return the report of some figures."""
    read = functools.cache(read)
    drawn = {figure.name: _DRAWERS[figure.kind](figure, read) for figure in figures}
    parts = [bool(one.missing) or one.is_part for one in drawn.values() if one.blocks]
    return Report(
        subject="figures of the papers",
        question="What do the papers' figures look like when they are drawn from our own runs?",
        lead=f"Of {names.count(len(figures), 'figure')}, {parts.count(False)} can be drawn in "
        f"full, and {parts.count(True)} in part or from runs that differ from the published ones. "
        "Curves are means over seeds. Bands reach from the smallest run to the largest.",
        sections=(
            Section(
                key="overview",
                title="Figures",
                blocks=(_overview(figures, drawn),),
                brief=True,
            ),
            *(_section(figure, drawn[figure.name], read) for figure in figures),
        ),
        datasets=tuple(curve_table(one.curves, name) for name, one in drawn.items() if one.curves),
        data={
            "figures": [
                {
                    "name": figure.name,
                    "title": figure.title,
                    "paper": figure.paper,
                    "sources": drawn[figure.name].sources,
                    "missing": [panel.title for panel in drawn[figure.name].missing],
                }
                for figure in figures
            ]
        },
        stem="figures",
    )


def _overview(figures: Sequence[PaperFigure], drawn: Mapping[str, _Drawn]) -> Table:
    def name_sources(figure: PaperFigure) -> str:
        one = drawn[figure.name]
        return names.listed(one.sources) or (_WITHOUT_RUNS[figure.kind] if one.blocks else MISSING)

    return tabulate(
        "figures",
        "The figures and what they are drawn from",
        figures,
        label("figure=name"),
        word("shows=title", "shows"),
        word("drawn_from=", "drawn from", name_sources),
        number("missing=name", "parts missing", lambda name: str(len(drawn[name].missing))),
        main=True,
    )


def _section(figure: PaperFigure, drawn: _Drawn, read: ReadRecords) -> Section:
    blocks = [*drawn.blocks]
    printed = _printed_table(figure, drawn, read)
    if printed.rows:
        blocks.append(printed)
    if drawn.missing:
        sentences = tuple(f"{panel.title}: {_say_missing(panel)}" for panel in drawn.missing)
        commands = dict.fromkeys(
            f"qkvary study {one.study} --task {one.task}"
            for panel in drawn.missing
            for one in panel.records[:1]
        )
        blocks += [Bullets(sentences), Code(tuple(commands))]
    return Section(
        key=figure.name,
        title=f"{figure.place}: {figure.title}",
        lead=f"{figure.paper}, {figure.place.lower()}.",
        link=figure.name,
        blocks=tuple(blocks),
    )


def _printed_table(figure: PaperFigure, drawn: _Drawn, read: ReadRecords) -> Table:
    """Return a table of the paper's numbers for the plotted tasks, with our numbers."""
    rows = list(_printed_rows(figure, drawn, read))
    return tabulate(
        f"{figure.name}-printed",
        "Published numbers for the same tasks, and ours",
        rows,
        label("variant"),
        word("quantity"),
        number("published", "paper", PRECISE),
        number("ours", write=PRECISE),
        number("difference", write=partial(numbers.real, sign=True)),
        word("study"),
        *([word("note")] if any(row["note"] for row in rows) else []),
        notes=list(
            dict.fromkeys(f"{row['study']}: {row['source']}. {row['about']}" for row in rows)
        ),
    )


def _printed_rows(
    figure: PaperFigure, drawn: _Drawn, read: ReadRecords
) -> Iterator[dict[str, Any]]:
    """Yield each number that the paper publishes for the plotted tasks, with our number.

    If two tables publish the same number, the number is taken from the first table.
    """
    tables = {name: load_published(name) for name in figure.published}
    columns = {
        (name, column.key): column for name, table in tables.items() for column in table.columns
    }
    for study in drawn.sources:
        known = [one for one in read(study).printed if (one.table, one.column) in columns]
        first: dict[Any, str] = {}
        for one in sorted(known, key=lambda one: figure.published.index(one.table)):
            column = columns[one.table, one.column]
            quantity = (one.variant, column.tasks, column.metric, column.where)
            if (
                one.variant in figure.variants
                and _is_drawn(column, study, drawn.records)
                and first.setdefault(quantity, one.table) == one.table
            ):
                yield {
                    **pick(one, "variant published ours note"),
                    "quantity": column.title,
                    "difference": one.ours - one.published,
                    "study": study,
                    "source": tables[one.table].source,
                    "about": tables[one.table].note,
                }


def _is_drawn(column: PublishedColumn, study: str, records: Sequence[Records]) -> bool:
    """Return whether ``records`` has the study's runs for all tasks of a published column."""
    chosen = dict(column.where)
    tasks = {
        one.task
        for one in records
        if one.study == study
        and all(chosen.get(name, value) == value for name, value in one.where.items())
    }
    return tasks.issuperset(column.tasks)


def _draw_curves(figure: PaperFigure, read: ReadRecords) -> _Drawn:
    charts: dict[str, list[Chart]] = {}
    missing: list[Panel] = []
    notes: dict[str, None] = {}
    used: list[Records] = []
    kept: list[LearningCurve] = []
    for panel in figure.panels:
        found = _find(panel, read, partial(_curves, figure))
        if found is None:
            missing.append(panel)
            continue
        records, curves = found
        used.append(records)
        kept += curves
        total = len(read(records.study).settings(records.task, records.where))
        notes |= dict.fromkeys(_differences(panel, records, curves, total))
        for quantity, chart in _panel_charts(figure, panel, records, curves, total):
            charts.setdefault(quantity, []).append(chart)
    groups = tuple(
        Group(
            title=quantity.replace("_", " ").capitalize(),
            blocks=tuple(own),
            layout="wide",
            file=f"{figure.name}-{names.slug(quantity)}",
            notes=() if index else tuple(notes),
        )
        for index, (quantity, own) in enumerate(charts.items())
    )
    return _Drawn(
        blocks=groups,
        records=tuple(used),
        missing=tuple(missing),
        curves=tuple(kept),
        is_part=bool(notes),
    )


def _differences(
    panel: Panel, records: Records, curves: Sequence[LearningCurve], total: int
) -> Iterator[str]:
    """Yield a sentence for each difference between a panel's runs and the published runs."""
    if records.differs:
        yield f"{records.study}: {records.differs}."
    have = len({curve.setting for curve in curves})
    if have < total:
        yield f"{records.study}: {panel.title} has runs of {have} of the {total} configurations."


def _find(
    panel: Panel, read: ReadRecords, load: Callable[[StudyRecords, Sequence[str]], Sequence[T]]
) -> tuple[Records, Sequence[T]] | None:
    """Return the first records of a panel that contain data to draw, and these data.

    Returns None if no records contain data to draw.
    """
    for records in panel.records:
        known = read(records.study)
        found = load(known, [one.name for one in known.settings(records.task, records.where)])
        if found:
            return records, found
    return None


def _curves(
    figure: PaperFigure, known: StudyRecords, settings: Sequence[str]
) -> list[LearningCurve]:
    wanted = {quantity for panel in figure.panels for quantity in panel.quantities}
    return [
        curve
        for curve in known.curves
        if curve.setting in settings
        and curve.variant in figure.variants
        and curve.quantity in wanted
        and curve.steps
    ]


def _panel_charts(
    figure: PaperFigure,
    panel: Panel,
    records: Records,
    curves: Sequence[LearningCurve],
    total: int,
) -> Iterator[tuple[str, Chart]]:
    """Yield each quantity of a panel with a chart of all settings or with charts per setting."""
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    for members in [[name] for name in settings] if panel.each_setting else [settings]:
        for quantity in panel.quantities:
            own = [one for one in curves if one.quantity == quantity and one.setting in members]
            means, count = _means(own, figure.variants)
            if not means:
                continue
            of_all = f"{count} of {total}" if count < total else str(count)
            several = f"{'mean of ' if count > 1 else ''}{of_all} settings"
            is_one = panel.each_setting or total == 1
            details = (records.study, "" if is_one else several, f"{count_runs(means)} a variant")
            yield (
                quantity,
                Chart(
                    draw=partial(curves_chart, means, figure.variants[0]),
                    caption=members[0] if panel.each_setting else panel.title,
                    detail="; ".join(part for part in details if part),
                ),
            )


def _means(
    curves: Sequence[LearningCurve], variants: Sequence[str]
) -> tuple[list[LearningCurve], int]:
    """Return the mean curve of each variant, and the number of settings that are averaged.

    Only settings in which all variants have a curve are averaged, so that the means are comparable.
    """
    found = {one: [curve for curve in curves if curve.variant == one] for one in variants}
    present = [some for some in found.values() if some]
    if not present:
        return [], 0
    shared = set[str].intersection(*({curve.setting for curve in some} for some in present))
    if not shared:
        return [], 0
    means = [
        paper_charts.mean_curve([curve for curve in some if curve.setting in shared])
        for some in present
    ]
    return means, len(shared)


def _draw_maps(figure: PaperFigure, read: ReadRecords) -> _Drawn:
    groups: list[Block] = []
    missing: list[Panel] = []
    used: list[Records] = []
    for panel in figure.panels:
        found = _find(panel, read, partial(_maps, figure))
        if found is None:
            missing.append(panel)
            continue
        records, examples = found
        used.append(records)
        groups.append(
            attention_maps.map_group(
                examples,
                title=panel.title,
                detail="; ".join(
                    filter(None, (records.study, examples[0].setting, records.differs))
                ),
                file=f"{figure.name}-{names.slug(panel.title)}",
            )
        )
    return _Drawn(
        blocks=tuple(groups),
        records=tuple(used),
        missing=tuple(missing),
        is_part=any(one.differs for one in used),
    )


def _maps(figure: PaperFigure, known: StudyRecords, settings: Sequence[str]) -> list[RunAttention]:
    """Return the attention maps of a figure's variants from the first setting with such maps."""
    for setting in settings:
        own = {one.variant: one for one in known.attention if one.setting == setting}
        found = [own[variant] for variant in figure.variants if variant in own]
        if found:
            return found
    return []


def _draw_diagonal(figure: PaperFigure, _: ReadRecords) -> _Drawn:
    keys = np.random.default_rng(0).standard_normal((_KEYS_DRAWN, _CHANNELS))
    scores, scale = keys @ keys.T, _CHANNELS**-0.5
    normalised = paper_charts.normalise_scores(keys)
    own_scale = scale * normalised
    np.fill_diagonal(own_scale, normalised.diagonal())
    maps = (
        ("K K^T", scores, "left panel, drawn as in the paper"),
        ("Diagonal divided by its mean", normalised, "right panel, drawn as in the paper"),
        ("Softmax of s K K^T", paper_charts.softmax(scale * scores), "without a norm"),
        (
            "Softmax, everything scaled",
            paper_charts.softmax(scale * normalised),
            "scaled after the division, as in the public code",
        ),
        (
            "Softmax, diagonal not scaled",
            paper_charts.softmax(own_scale),
            "the diagonal is divided, but not scaled",
        ),
    )
    charts = tuple(
        Chart(draw=partial(paper_charts.score_map, values, title), caption=title, detail=detail)
        for title, values, detail in maps
    )
    text = (
        f"The maps show the scores of {_KEYS_DRAWN} random keys of {_CHANNELS} numbers each. The "
        "paper draws keys in the same way but prints no seed, so its keys differ from these. The "
        "upper part of the paper's figure is a torch function that does what this numpy code does:"
    )
    group = Group(blocks=charts, layout="maps", file=figure.name)
    return _Drawn(blocks=(Prose(text), Code(_DIAGONAL_CODE, language="python"), group))


def _draw_sets(figure: PaperFigure, read: ReadRecords) -> _Drawn:
    for panel in figure.panels:
        found = _find(panel, read, _samples)
        if found is not None:
            records, (run, *_) = found
            charts = tuple(
                Chart(
                    draw=partial(set_drawing, sample),
                    caption=f"Number {sample.truth} is the anomaly",
                )
                for sample in run.samples
            )
            detail = f"{records.study}; {run.setting}"
            group = Group(
                title=panel.title, detail=detail, blocks=charts, layout="wide", file=figure.name
            )
            return _Drawn(blocks=(group,), records=(records,))
    return _Drawn(blocks=(), missing=figure.panels)


def _draw_blocks(figure: PaperFigure, _: ReadRecords) -> _Drawn:
    charts = tuple(chart for one in figure.variants if (chart := diagram(one)))
    return _Drawn(blocks=(Group(blocks=charts, layout="wide", file=figure.name),))


def _draw_printed(figure: PaperFigure, _: ReadRecords) -> _Drawn:
    every = compute_quality_points("300M")
    points = tuple(one for one in every.points if one.variant in figure.variants)
    shown = replace(every, points=points)
    chart = Chart(
        draw=partial(quality_chart, shown), caption=figure.title, table=quality_table(shown)
    )
    group = Group(blocks=(chart,), notes=collect_caveats(points), file=figure.name)
    text = (
        "The chart shows the perplexities of Table 4 by the size of the cache. The "
        "intervals are consistent with the rounding of the printed perplexities."
    )
    return _Drawn(blocks=(Prose(text), group))


def _draw_transfer(figure: PaperFigure, _: ReadRecords) -> _Drawn:
    errors = {reading: list(paper_charts.transfer_errors(reading)) for reading in figure.variants}
    charts = tuple(
        Chart(
            draw=partial(paper_charts.transfer_chart, own, reading),
            caption=reading,
            detail=f"{own[0].error.runs} runs each",
        )
        for reading, own in errors.items()
        if own
    )
    text = (
        "The charts show the relative errors of a trained network and of the best linear map, with "
        "95 % intervals. For every width, the paper prints 4-5 % for the network and 9-10 % for "
        "the linear map. Our copy of the text lacks the formula of the target, so the charts use "
        "two readings of it. With the first, the linear map has about the printed error; with the "
        "second, it has a larger one, which falls with the width. The network was trained for "
        "20,000 steps of 65,536 inputs, as in the paper."
    )
    group = Group(blocks=charts, layout="wide", file=figure.name)
    return _Drawn(blocks=(Prose(text), group))


def _samples(known: StudyRecords, settings: Sequence[str]) -> list[RunSamples]:
    return [one for one in known.samples if one.setting in settings]


def _say_missing(panel: Panel) -> str:
    studies = names.listed([one.study for one in panel.records], "or")
    return f"there are no records of {studies}."


_DRAWERS: Mapping[str, Callable[[PaperFigure, ReadRecords], _Drawn]] = {
    "curves": _draw_curves,
    "maps": _draw_maps,
    "diagonal": _draw_diagonal,
    "sets": _draw_sets,
    "blocks": _draw_blocks,
    "printed": _draw_printed,
    "transfer": _draw_transfer,
}
