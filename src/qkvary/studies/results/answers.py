"""Writes the answer and the caveats of a study in sentences. Never imports torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

from qkvary.studies.results.summary import (
    ContrastRow,
    Counts,
    Difference,
    LearningRateRow,
    MeanCosts,
    ResultTable,
    Verdict,
)


def write_answers(tables: Sequence[ResultTable], baseline: str) -> tuple[str, ...]:
    """State the differences from the baseline in each table, grouped by verdict."""
    headline = [table for table in tables if table.kind != "setting"]
    compared = [row.difference for table in headline for row in table.rows if row.difference]
    if not compared:
        alone = [
            f"{baseline} has a {table.metric_title} of {row.mean:.4f} ({table.name})."
            for table in headline
            for row in table.rows
            if row.variant == baseline and row.mean is not None
        ]
        return (*alone, f"There is nothing to compare: {baseline} is the only variant.")
    if not any(difference.pairs for difference in compared):
        return (f"No pair of runs has finished, so nothing can be said about {baseline} yet.",)
    sentences = [_overview(compared, baseline)]
    for table in headline:
        gaps = {row.variant: row.difference for row in table.rows if row.difference}
        steps = {
            row.variant: row.solving.difference
            for row in table.rows
            if row.solving and row.solving.difference
        }
        for title, some in ((table.metric_title, gaps), ("steps to solve", steps)):
            if some:
                said = f"{table.name}, {title or 'no result yet'}, against {baseline}"
                sentences.append(f"{said}: {_by_verdict(some)}.")
    return tuple(sentences)


def write_contrast(
    variant: str,
    reference: str,
    rows: Sequence[ContrastRow],
    costs: Sequence[tuple[MeanCosts | None, MeanCosts | None]],
) -> str:
    """State the result of a planned contrast in one sentence."""
    headline = [row for row in rows if row.kind != "setting"] or rows
    start = f"{variant} against {reference}{_same_costs(costs)}"
    if not any(row.difference.pairs for row in headline):
        return f"{start}: no pair of runs has finished yet."
    named = {
        f"{row.table}, {row.metric_title or 'no result yet'}": row.difference for row in headline
    }
    return f"{start}: {_by_verdict(named)}."


def _by_verdict(differences: Mapping[str, Difference]) -> str:
    """State the differences, grouped by verdict."""
    parts: list[str] = []
    for verdict in get_args(Verdict):
        found = [
            # A sentence begins with the verdict.
            f"{name} ({gap.sentence.partition(': ')[2]})"
            for name, gap in differences.items()
            if gap.verdict == verdict
        ]
        if found:
            parts.append(f"{verdict}: {', '.join(found)}")
    return "; ".join(parts)


def _overview(differences: Sequence[Difference], baseline: str) -> str:
    numbers = Counter(difference.verdict for difference in differences)
    better, worse = numbers["better"], numbers["worse"]
    words = {"not distinguished": "not distinguished", "no interval": "without an interval"}
    rest = [f"{numbers[verdict]} {words[verdict]}" for verdict in words if numbers[verdict]]
    tail = f"; {' and '.join(rest)}" if rest else ""
    return (
        f"The data support {better + worse} of {len(differences)} differences from {baseline} "
        f"({worse} worse, {better} better){tail}."
    )


def _same_costs(pairs: Sequence[tuple[MeanCosts | None, MeanCosts | None]]) -> str:
    """Name the costs that two variants share in every table; empty if there are no such costs."""
    costs = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    caches = {(a.cache_bytes_per_token, b.cache_bytes_per_token) for a, b in costs}
    caches.discard((None, None))
    same: list[str] = []
    if costs and all(a.parameters_total == b.parameters_total for a, b in costs):
        same.append("the same number of parameters")
    if caches and all(a == b for a, b in caches):
        same.append("the same cache per token")
    return f", which has {' and '.join(same)}" if same else ""


def write_caveats(
    limits: Sequence[str],
    counts: Counts,
    tables: Sequence[ResultTable],
    seeds: Sequence[int],
    learning_rates: Sequence[LearningRateRow],
    environments: int,
) -> tuple[str, ...]:
    """Return the caveats of a study: sentences that limit its conclusions."""
    caveats = list(limits)
    if not counts.complete:
        states = ("failed", "diverged", "damaged", "missing")
        open_ends = [f"{number} {one}" for one in states if (number := getattr(counts, one))]
        caveats.append(
            f"{counts.done} of {counts.planned} runs finished ({', '.join(open_ends)}); "
            "means and differences are computed from the finished runs."
        )
    if len(seeds) == 1:
        caveats.append(
            "There is one seed. Intervals are therefore computed from the spread over settings, "
            "and a task with one setting has no interval."
        )
    elif len(seeds) == 2:
        caveats.append("There are only two seeds, so intervals are necessarily very wide.")
    differences = [row.difference for table in tables for row in table.rows if row.difference]
    if len(seeds) > 1 and any(one.unit == "setting" and one.units for one in differences):
        caveats.append(
            "Where there are few seeds and many settings, the settings are the units of the "
            "interval. Such an interval applies to similar settings, and assumes that the settings "
            "are independent."
        )
    caveats.append(_learning_rate_sentence(learning_rates))
    if environments > 1:
        caveats.append(
            f"The runs come from {environments} different machines or versions: "
            "times are not comparable between them."
        )
    return tuple(caveats)


def _learning_rate_sentence(rows: Sequence[LearningRateRow]) -> str:
    if not rows:
        return "All variants use the same hyper-parameters in a setting."
    edge = sum(row.at_the_edge for row in rows)
    chosen = sum(row.chosen for row in rows)
    tail = (
        f" In {edge} of {chosen} cases, the chosen learning rate is the smallest or the largest of "
        "the learning rates that were tried."
        if edge
        else ""
    )
    return (
        "Each variant uses its own best learning rate in a setting. It is chosen by the mean of "
        "the task's own validation metric, also in tables of another metric. The scores are those "
        f"of the test split if there is one.{tail}"
    )
