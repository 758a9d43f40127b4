"""The tables of a study as CSV and Markdown files.

CSV holds unrounded figures under the names of the Python interface, Markdown what the page prints.
"""

from collections.abc import Iterable, Sequence

from qkvary.reports import contents, listings
from qkvary.reports.maps import AttentionMaps
from qkvary.reports.tables import Raw, Table, table_csv, table_markdown, to_csv
from qkvary.studies.results.summary import Difference, ResultTable, Summary, VariantRow
from qkvary.text import names

_RESULTS = (
    *("table", "kind", "metric", "higher_is_better", "variant"),
    *("runs_planned", "runs_done", "runs_failed", "runs_diverged", "runs_missing"),
    *("mean", "std_seeds", "std_settings", "baseline", "pairs", "difference", "low", "high"),
    *("low_single", "high_single", "p_value", "p_adjusted", "comparisons", "detectable"),
    *("verdict", "training_seconds", "steps_per_second"),
)
_CONTRASTS = (
    *("variant", "reference", "table", "kind", "metric", "higher_is_better"),
    *("pairs", "difference", "low", "high", "low_single", "high_single", "p_value", "p_adjusted"),
    *("comparisons", "detectable", "verdict", "sentence"),
)
_FRONTIERS = (
    *("table", "axis", "metric", "higher_is_better", "variant", "cost", "quality"),
    *("standing", "dominated_by"),
)
_SOLVING = (
    *("table", "variant", "threshold", "horizon_steps", "runs", "solved"),
    *("proportion_low", "proportion_high", "median_steps", "restricted_mean_steps"),
    *("difference_steps", "low_steps", "high_steps", "verdict", "p_sign"),
)


def csv_files(summary: Summary, attention: Sequence[AttentionMaps]) -> dict[str, str]:
    """Return the text of every CSV file by its name; tables without rows are left out."""
    solving = tuple(row for table in summary.tables for row in _solving_rows(table))
    files = {
        "results.csv": to_csv(_RESULTS, _result_rows(summary.tables)),
        "contrasts.csv": to_csv(_CONTRASTS, _contrast_rows(summary)) if summary.contrasts else "",
        "frontiers.csv": to_csv(_FRONTIERS, _frontier_rows(summary)),
        "solving.csv": to_csv(_SOLVING, solving) if solving else "",
        "costs.csv": table_csv(contents.cost_table(contents.main_tables(summary), "costs")),
        "runs.csv": to_csv(_RUNS, _run_rows(summary)),
    }
    further = {
        "curves.csv": listings.curve_table(summary.curves, "curves", ""),
        "attention.csv": listings.attention_table(attention, "attention"),
        "learning_rates.csv": listings.learning_rate_table(summary, "learning-rates"),
        **{
            f"published-{index + 1}-{names.slug(one.name)}.csv": listings.published_table(
                one, "published"
            )
            for index, one in enumerate(summary.published)
        },
    }
    files |= {name: table_csv(table) for name, table in further.items() if table.rows}
    return {name: text for name, text in files.items() if text}


def _result_rows(tables: Iterable[ResultTable]) -> Iterable[Sequence[Raw]]:
    for table in tables:
        for row in table.rows:
            counts = row.counts
            yield (
                *(table.name, table.kind, table.metric, table.higher_is_better, row.variant),
                *(counts.planned, counts.done, counts.failed, counts.diverged, counts.missing),
                *(row.mean, row.std_seeds, row.std_settings),
                *_difference_fields(row.difference),
                *(row.training_seconds, row.steps_per_second),
            )


def _difference_fields(gap: Difference | None) -> Sequence[Raw]:
    if gap is None:
        return (None,) * 12
    return (
        *(gap.baseline, gap.pairs, gap.mean, gap.low, gap.high, gap.low_single, gap.high_single),
        *(gap.p_value, gap.p_adjusted, gap.comparisons, gap.detectable, gap.verdict),
    )


def _contrast_rows(summary: Summary) -> Iterable[Sequence[Raw]]:
    for contrast in summary.contrasts:
        for row in contrast.rows:
            yield (
                *(contrast.variant, contrast.reference, row.table, row.kind, row.metric),
                row.higher_is_better,
                *_difference_fields(row.difference)[1:],
                row.sentence,
            )


def _frontier_rows(summary: Summary) -> Iterable[Sequence[Raw]]:
    for chart in summary.frontiers:
        for point in chart.points:
            yield (
                *(chart.table, chart.axis, chart.metric, chart.higher_is_better, point.variant),
                *(point.cost, point.quality, point.standing, "; ".join(point.dominated_by)),
            )


def _solving_rows(table: ResultTable) -> Iterable[Sequence[Raw]]:
    return (_solving_row(table, row) for row in table.rows if row.solving)


def _solving_row(table: ResultTable, row: VariantRow) -> Sequence[Raw]:
    solving = row.solving
    if solving is None:
        return ()
    gap = solving.difference
    return (
        *(
            table.name,
            row.variant,
            solving.threshold,
            solving.horizon,
            solving.runs,
            solving.solved,
        ),
        *(solving.proportion_low, solving.proportion_high, solving.median_steps),
        solving.restricted_mean_steps,
        *((gap.mean, gap.low, gap.high, gap.verdict) if gap else (None,) * 4),
        solving.p_sign,
    )


_RUNS = (
    *(
        "setting",
        "task",
        "variant",
        "seed",
        "learning_rate",
        "state",
        "selected",
        "metric",
        "value",
    ),
    *("steps_to_solve", "training_seconds", "total_seconds", "run_key", "message"),
)


def _run_rows(summary: Summary) -> Iterable[Sequence[Raw]]:
    for run in summary.runs:
        yield (
            *(
                run.setting,
                run.task,
                run.variant,
                run.seed,
                run.learning_rate,
                run.state,
                run.selected,
            ),
            *(run.metric, run.value, run.steps_to_solve, run.training_seconds, run.total_seconds),
            *(run.run_key, run.message),
        )


def all_tables(summary: Summary, attention: Sequence[AttentionMaps]) -> list[Table]:
    """Return every table of the page in its order, those without rows left out."""
    tables = contents.main_tables(summary)
    made = [
        contents.contrast_table(summary, "contrasts"),
        contents.matrix(summary),
        *(contents.result_table(one, summary, "results") for one in summary.tables),
        *(contents.frontier_table(one, "frontier") for one in summary.frontiers),
        *(contents.solving_table(one, "solving") for one in tables if one.kind != "average"),
        contents.cost_table(tables, "costs"),
        *(listings.published_table(one, "published") for one in summary.published),
        listings.attention_table(attention, "attention"),
        listings.learning_rate_table(summary, "learning-rates"),
        listings.problem_table(summary.runs, "problems"),
    ]
    return [table for table in made if table.rows]


def _how_to_run_again(summary: Summary) -> list[str]:
    """The command, the seeds, the machines and the versions behind the tables."""
    escape = names.markdown
    lines = ["## Run it again", "", f"    {names.clean(summary.commands[0])}", ""]
    lines += [
        "; ".join(f"{escape(key)} {escape(value)}" for key, value in machine) + "."
        for machine in summary.environments
    ]
    if summary.started and summary.ended:
        lines.append(f"Started {escape(summary.started)}, ended {escape(summary.ended)}.")
    return [*lines, ""]


def markdown_report(summary: Summary, attention: Sequence[AttentionMaps]) -> str:
    """Return the question, the answers and every table as one Markdown document."""
    escape = names.markdown
    lines = [f"# {escape(summary.question)}", "", f"Study {escape(summary.study)}.", ""]
    lines += [f"- {escape(answer)}" for answer in summary.answers]
    lines += [f"- {escape(contrast.answer)}" for contrast in summary.contrasts]
    if summary.caveats:
        lines += ["", "## Before you believe it", ""]
        lines += [f"- {escape(caveat)}" for caveat in summary.caveats]
    lines += ["", "## How the intervals were made", ""]
    lines += [f"{escape(sentence)}\n" for sentence in summary.method.sentences]
    lines += _how_to_run_again(summary)
    lines += ["## Tables", "", *(table_markdown(table) for table in all_tables(summary, attention))]
    return "\n".join(lines).encode("utf-8", "replace").decode()
