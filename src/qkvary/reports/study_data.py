"""The unrounded values of a study in long form, one table for each CSV file."""

from collections.abc import Iterator, Sequence

from qkvary.reports import run_tables
from qkvary.reports.samples import RunSamples, sample_rows
from qkvary.reports.study_tables import cost_table, main_tables
from qkvary.reports.tables import Raw, Table, dataset, pick
from qkvary.studies.results.summary import ResultTable, Summary
from qkvary.text import names

Row = dict[str, Raw]

_RUN = (
    "setting task variant seed learning_rate state selected metric value steps_to_solve "
    "training_seconds total_seconds run_key message"
)


def study_datasets(summary: Summary, samples: Sequence[RunSamples] = ()) -> tuple[Table, ...]:
    """Return every dataset that has rows. Its key is the name of its CSV file."""
    made = (
        dataset("results", _results(summary.tables)),
        dataset("contrasts", _contrasts(summary)),
        dataset("frontiers", _frontiers(summary)),
        dataset("solving", _solving(summary.tables)),
        cost_table(main_tables(summary)),
        dataset("runs", (pick(run, _RUN) for run in summary.runs)),
        run_tables.curve_table(summary.curves, "curves"),
        dataset("samples", sample_rows(samples)),
        run_tables.learning_rate_table(summary, "learning_rates"),
        *(
            run_tables.published_table(one, f"published-{index + 1}-{names.slug(one.name)}")
            for index, one in enumerate(summary.published)
        ),
    )
    return tuple(table for table in made if table.rows)


def _results(tables: Sequence[ResultTable]) -> Iterator[Row]:
    for table in tables:
        for row in table.rows:
            yield {
                **pick(table, "table=name kind metric higher_is_better"),
                "variant": row.variant,
                **pick(
                    row.counts,
                    "runs_planned=planned runs_done=done runs_failed=failed "
                    "runs_diverged=diverged runs_damaged=damaged runs_missing=missing",
                ),
                **pick(row, "mean std_seeds std_settings"),
                **pick(row.difference, f"baseline {_DIFFERENCE}"),
                **pick(row, "training_seconds steps_per_second"),
            }


_DIFFERENCE = (
    "pairs difference=mean low high low_single high_single p_value p_adjusted comparisons "
    "detectable verdict"
)


def _contrasts(summary: Summary) -> Iterator[Row]:
    for contrast in summary.contrasts:
        for row in contrast.rows:
            yield {
                **pick(contrast, "variant reference"),
                **pick(row, "table kind metric higher_is_better"),
                **pick(row.difference, _DIFFERENCE),
                "sentence": row.sentence,
            }


def _frontiers(summary: Summary) -> Iterator[Row]:
    for frontier in summary.frontiers:
        for point in frontier.points:
            yield {
                **pick(frontier, "table axis metric higher_is_better"),
                **pick(point, "variant cost quality standing"),
                "dominated_by": "; ".join(point.dominated_by),
            }


def _solving(tables: Sequence[ResultTable]) -> Iterator[Row]:
    for table in tables:
        for row in table.rows:
            if row.solving is not None:
                yield {
                    "table": table.name,
                    "variant": row.variant,
                    **pick(
                        row.solving,
                        "threshold horizon_steps=horizon runs solved proportion_low "
                        "proportion_high median_steps restricted_mean_steps "
                        "difference_steps=difference.mean low_steps=difference.low "
                        "high_steps=difference.high verdict=difference.verdict p_sign",
                    ),
                }
