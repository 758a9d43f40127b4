"""The report of a study: answers, every table and chart, and commands to run it again."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from qkvary.reports import run_tables, study_tables
from qkvary.reports.attention_maps import RunAttention, map_group
from qkvary.reports.learning_curves import count_runs, headline_quantity, panels
from qkvary.reports.report import (
    Block,
    Bullets,
    Chart,
    Code,
    Fold,
    Group,
    Prose,
    Report,
    Section,
)
from qkvary.reports.samples import RunSamples, sample_section
from qkvary.reports.study_charts import (
    AXIS_TITLES,
    difference_chart,
    frontier_chart,
    panel_name,
)
from qkvary.reports.study_data import study_datasets
from qkvary.reports.tables import Table
from qkvary.reports.variant_diagrams import block_labels, diagram
from qkvary.reports.variant_styles import family_legend
from qkvary.studies.results.summary import (
    CostAxis,
    Frontier,
    LearningCurve,
    ResultTable,
    Summary,
)
from qkvary.text import names, numbers

_PICTURE_AXES: tuple[CostAxis, ...] = ("cache_bytes_per_token", "parameters")
"""Costs for the picture next to the answer. The first cost with a chart in the study is used."""


def study_report(
    summary: Summary,
    attention: Sequence[RunAttention] = (),
    samples: Sequence[RunSamples] = (),
) -> Report:
    """Return the report of a study, with examples of attention and samples of its runs."""
    shown, shared = drop_shared_terms(summary)
    tables = study_tables.main_tables(shown)
    sections = (
        _results(shown, tables),
        _frontiers(shown, tables),
        _curves(shown),
        _solving(study_tables.solving_table(shown, tables)),
        sample_section(samples),
        _attention(attention),
        _variants(summary, tables),
        _published(summary),
        _provenance(summary),
    )
    return Report(
        subject=f"study: {summary.study}",
        question=summary.question,
        answer=shown.headline or shown.answers,
        picture=_picture(shown),
        caveats=shown.caveats,
        facts=tuple(_facts(summary, shared)),
        sections=tuple(section for section in sections if section.blocks),
        datasets=study_datasets(summary, samples),
        data={"summary": summary},
    )


def _picture(summary: Summary) -> Chart | None:
    """Return a chart of quality against cost, preferably of the headline table."""
    charts = [one for one in summary.frontiers if one.axis in _PICTURE_AXES]
    if not summary.headline_table or not charts:
        return None
    chosen = min(
        charts,
        key=lambda one: (_PICTURE_AXES.index(one.axis), one.table != summary.headline_table),
    )
    level = numbers.percent(summary.method.confidence, 0)
    return Chart(
        draw=partial(frontier_chart, chosen, summary.baseline),
        caption=f"{panel_name(chosen.table)}: quality against {AXIS_TITLES[chosen.axis]}",
        detail="The line joins the variants on the frontier: no other variant is better at the "
        "same or a lower cost. A hollow point is a variant that is dominated: another variant "
        f"costs no more and has been shown to be better. Bars show the {level} intervals of the "
        f"difference from {names.clip(summary.baseline)}.",
        file="answer",
    )


def _facts(summary: Summary, shared: str) -> Iterator[tuple[str, str]]:
    yield "runs", study_tables.count_words(summary.counts)
    yield "variants", numbers.whole(len(summary.variants))
    if shared:
        yield "all variants have", shared
    yield "tasks", numbers.whole(len({run.task for run in summary.runs}))
    yield "seeds", numbers.whole(len(summary.seeds))
    yield "training time", numbers.duration(summary.training_seconds)
    if summary.ended:
        yield "last run ended", moment(summary.ended)


def _results(summary: Summary, tables: Sequence[ResultTable]) -> Section:
    contrasts = study_tables.contrast_table(summary)
    differences = tuple(
        Chart(draw=partial(difference_chart, table, summary.baseline))
        for table in tables
        if any(row.difference for row in table.rows)
    )
    settings = [table for table in summary.tables if table not in tables]
    each = study_tables.matrix(summary, settings, "settings", "Variants by setting")
    sentences = (
        *(summary.answers if summary.headline else ()),
        *(contrast.answer for contrast in summary.contrasts),
    )
    drawn = Group(
        title=f"Difference from {names.clip(summary.baseline)}, paired by seed",
        lead="The point is the mean difference. The thin line is the interval that holds for all "
        "comparisons at once. The thick line is the interval for this comparison alone. A filled "
        "point means that the data support the difference. A hollow point means that the data do "
        "not distinguish the difference from zero.",
        blocks=differences,
        layout="narrow",
        file="differences",
    )
    said = Fold(title="Every comparison in words", blocks=(Bullets(sentences),))
    blocks: tuple[Block, ...] = (
        study_tables.matrix(summary, tables, "overview", "Variants by task"),
        family_legend(summary.variants, summary.baseline),
        *([contrasts] if contrasts.rows else []),
        *([drawn] if differences else []),
        *([said] if sentences else []),
        *([Fold(title="Results of each setting", blocks=(each,))] if settings else []),
        Fold(
            title="How the intervals were made", blocks=tuple(map(Prose, summary.method.sentences))
        ),
    )
    return Section(
        key="results", title="Results", lead=summary.description, blocks=blocks, brief=True
    )


def _frontiers(summary: Summary, tables: Sequence[ResultTable]) -> Section:
    wanted = {table.name for table in tables}
    shown = [one for one in summary.frontiers if one.table in wanted and one.points]
    groups = [
        Group(
            title=f"Against {charts[0].axis_title}",
            blocks=tuple(_frontier(one, shown.index(one) + 1, summary) for one in charts),
            layout="wide",
        )
        for axis in AXIS_TITLES
        if (charts := [one for one in shown if one.axis == axis])
    ]
    folded = (Fold(title=group.title, blocks=(replace(group, title=""),)) for group in groups[1:])
    return Section(
        key="frontiers",
        title="Quality and cost",
        lead="The line joins the variants on the frontier: no other variant has a better mean at "
        "the same or a lower cost. A hollow point is a dominated variant: another variant that "
        "costs no more has been shown to be better. Bars show the interval of the paired "
        f"difference from {names.clip(summary.baseline)}, not adjusted for multiple comparisons, "
        "drawn around each variant’s mean. Points that would overlap are drawn a little to the "
        "right.",
        blocks=(*groups[:1], *folded),
    )


def _frontier(frontier: Frontier, number: int, summary: Summary) -> Chart:
    left_out = names.listed(frontier.left_out)
    return Chart(
        draw=partial(frontier_chart, frontier, summary.baseline),
        caption=frontier.table,
        detail=f"not drawn, for lack of runs or of a known cost: {left_out}" if left_out else "",
        file=f"frontier-{number:02d}-{names.slug(frontier.table)}-{names.slug(frontier.axis)}",
    )


def _solving(table: Table) -> Section:
    return Section(key="solving", title="Steps to solve", blocks=(table,) if table.rows else ())


def _curves(summary: Summary) -> Section:
    by_setting: dict[str, list[LearningCurve]] = {}
    for curve in summary.curves:
        if curve.steps:
            by_setting.setdefault(curve.setting, []).append(curve)
    metrics = {run.setting: run.metric for run in summary.runs if run.metric}
    blocks: list[Block] = []
    for index, (setting, curves) in enumerate(by_setting.items(), start=1):
        headline = headline_quantity(curves, metrics.get(setting, ""))
        shown = [curve for curve in curves if curve.quantity == headline]
        if shown:
            blocks.append(
                Group(
                    title=f"{setting}: {headline} over steps",
                    detail=f"{count_runs(shown)} a variant",
                    blocks=panels(shown, summary.baseline),
                    layout="panels",
                    file=f"curves-{index:02d}-{names.slug(setting)}-{names.slug(headline)}",
                )
            )
    drawn = {curve.variant for curves in by_setting.values() for curve in curves}
    behind = f", and the grey line is the mean of {names.clip(summary.baseline)}"
    solves = any(run.steps_to_solve is not None for run in summary.runs)
    solving = (
        " If a run stops because it has solved the task, its last value counts for all later steps."
    )
    return Section(
        key="curves",
        title="Learning curves",
        lead="There is one panel for each variant, and all panels of a task have the same scale. "
        "The line is the mean over seeds. The band reaches from the smallest to the largest value "
        f"of the seeds{behind if drawn > {summary.baseline} else ''}.{solving if solves else ''}",
        blocks=tuple(blocks),
    )


def _attention(attention: Sequence[RunAttention]) -> Section:
    groups: dict[tuple[str, str], list[RunAttention]] = {}
    for example in attention:
        groups.setdefault((example.setting, example.kind), []).append(example)
    blocks: list[Block] = []
    for index, ((setting, kind), examples) in enumerate(groups.items(), start=1):
        has_targets = any(target is not None for target in examples[0].targets)
        blocks.append(
            map_group(
                examples,
                title=f"{setting}: {kind}" if kind else setting,
                detail=f"outlined: {examples[0].right_cell}" if has_targets else "",
                file=f"attention-{index:02d}-{names.slug(f'{setting} {kind}')}",
            )
        )
    return Section(
        key="attention",
        title="Attention",
        lead="The maps show the attention of one trained network on one validation example. Rows "
        "are queries, and columns are keys. A cell that stands out more gets more attention. The "
        "shade follows the square root of the weight, so that faint attention is visible.",
        blocks=tuple(blocks),
    )


def _variants(summary: Summary, tables: Sequence[ResultTable]) -> Section:
    blocks = dict.fromkeys(one for label in summary.variants for one in block_labels(label))
    diagrams = tuple(one for one in map(diagram, blocks) if one is not None)
    return Section(
        key="variants",
        title="The variants and their costs",
        link="Variants",
        lead="Each drawing is derived from the definition that the network was built from. The "
        "labels are the papers’ names: a minus separates projections, and an equals sign joins "
        "roles (query, key or value) that share one projection. Tinted boxes are what a cache "
        "keeps when text is generated.",
        blocks=(
            *([Group(blocks=diagrams, layout="diagrams")] if diagrams else []),
            study_tables.cost_table(tables),
        ),
    )


def _published(summary: Summary) -> Section:
    return Section(
        key="published",
        title="Published figures",
        lead="Each table shows the papers’ numbers beside the numbers measured here. “Does not "
        "recompute” means that the published number does not follow from the paper’s own inputs.",
        blocks=tuple(
            run_tables.published_table(comparison, f"published-{index}")
            for index, comparison in enumerate(summary.published)
        ),
    )


def _provenance(summary: Summary) -> Section:
    seeds = names.listed([str(seed) for seed in summary.seeds])
    machines = Bullets(
        tuple(
            ", ".join(f"{name} {value}" for name, value in machine)
            for machine in summary.environments
        )
    )
    problems = run_tables.problem_table(summary.runs)
    rates = run_tables.learning_rate_table(summary, "learning-rates")
    return Section(
        key="rerun",
        title="Runs",
        lead=f"Finished and planned runs: {study_tables.count_words(summary.counts)}.",
        blocks=(
            problems if problems.rows else Prose("Every planned run ended with a finite result."),
            Group(title="Run it again", blocks=(Code(summary.commands),)),
            Prose(
                f"Seeds {seeds}. Two runs with the same configuration, seed and thread count are "
                "equal to the last bit if they use the same kind of processor and the same "
                "software versions. Interruptions and the number of workers make no difference."
            ),
            *([Group(title="Machines and versions", blocks=(machines,))] if machines.items else []),
            *([Fold(title="Learning rates", blocks=(rates,))] if rates.rows else []),
        ),
    )


def moment(stamp: str) -> str:
    """Return an ISO 8601 time in readable form."""
    return names.clip(stamp.replace("T", " ").replace("+00:00", " UTC"), 40)


def drop_shared_terms(summary: Summary) -> tuple[Summary, str]:
    """Return a summary with shorter labels, and the ending that was removed from all labels.

    If all of several variants are rotary, ``Q-K=V@rotary`` becomes ``Q-K=V`` in every text, and the
    second value is ``rotary``. If the labels share no ending, the second value is empty, and the
    summary is unchanged.
    """
    blocks = {one for label in summary.variants for one in block_labels(label)}
    endings = {label.partition("@")[2] for label in blocks}
    if len(summary.variants) == 1 or len(endings) > 1 or endings <= {""}:
        return summary, ""
    ending = endings.pop()
    return _replace(summary, f"@{ending}"), ending


def _replace(value: Any, ending: str) -> Any:
    if isinstance(value, str):
        return value.replace(ending, "")
    if isinstance(value, tuple):
        return tuple(_replace(one, ending) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _replace(getattr(value, field.name), ending) for field in fields(value)
        }
        return replace(value, **changed)
    return value
