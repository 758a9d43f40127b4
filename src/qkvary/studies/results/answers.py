"""Writes the answer and the caveats of a study in sentences. Never imports torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

from qkvary.studies.results.summary import (
    ContrastRow,
    CostRow,
    Counts,
    Difference,
    LearningRateRow,
    ResultTable,
    Verdict,
)
from qkvary.text.numbers import decimals_of, fixed, interval

_UNDECIDED: Mapping[Verdict, str] = {
    "not distinguished": "not distinguished",
    "no interval": "without an interval",
}


def write_answers(tables: Sequence[ResultTable], baseline: str) -> tuple[str, ...]:
    """State, for each table, which differences from the baseline are supported by the data."""
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
    sentences += [
        _describe_table(table, baseline)
        for table in headline
        if any(row.difference for row in table.rows)
    ]
    sentences += [text for table in headline if (text := _describe_steps(table, baseline))]
    return tuple(sentences)


def write_contrast(
    variant: str,
    reference: str,
    rows: Sequence[ContrastRow],
    costs: Sequence[tuple[CostRow | None, CostRow | None]],
) -> str:
    """State the result of a planned contrast in one sentence."""
    headline = [row for row in rows if row.kind != "setting"] or rows
    start = f"{variant} against {reference}{_same_costs(costs)}"
    if not any(row.difference.pairs for row in headline):
        return f"{start}: no pair of runs has finished yet."
    parts = [
        f"{_UNDECIDED.get(verdict, verdict)} in {', '.join(found)}"
        for verdict in get_args(Verdict)
        if (found := [_in_table(row) for row in headline if row.difference.verdict == verdict])
    ]
    return f"{start}: {'; '.join(parts)}."


def _in_table(row: ContrastRow) -> str:
    gap = row.difference
    said = _without_prefix(gap).removeprefix("no interval: ").removeprefix("not compared: ")
    if gap.verdict == "not distinguished" and gap.low is not None and gap.high is not None:
        decimals = decimals_of((gap.high - gap.low) / 2)
        said = f"{fixed(gap.mean or 0.0, decimals)} "
        said += interval(gap.low, gap.high, decimals)
        if gap.pairs < gap.pairs_planned:
            said += f", from {gap.pairs} of {gap.pairs_planned} pairs"
    return f"{row.table} ({row.metric_title or 'no result yet'}: {said})"


def _same_costs(pairs: Sequence[tuple[CostRow | None, CostRow | None]]) -> str:
    """Name the costs that two variants share in every table; empty if they share none."""
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
    """State the limits of the answer."""
    caveats = list(limits)
    if not counts.complete:
        states = ("failed", "diverged", "damaged", "missing")
        open_ends = [f"{number} {one}" for one in states if (number := getattr(counts, one))]
        caveats.append(
            f"{counts.done} of {counts.planned} runs finished ({', '.join(open_ends)}); "
            "means and differences are over the finished runs."
        )
    if len(seeds) == 1:
        caveats.append(
            "There is one seed: the only spread is that over settings, and a task with one setting "
            "has no interval at all."
        )
    elif len(seeds) == 2:
        caveats.append("There are two seeds: intervals are very wide by necessity.")
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
        "Each variant uses its own best learning rate in a setting, chosen by the mean of the "
        "task's own validation metric, whichever score a table shows; the scores are those of the "
        f"test split, where there is one.{tail}"
    )


def _overview(differences: Sequence[Difference], baseline: str) -> str:
    numbers = Counter(difference.verdict for difference in differences)
    better, worse = numbers["better"], numbers["worse"]
    rest = [
        f"{numbers[verdict]} {words}" for verdict, words in _UNDECIDED.items() if numbers[verdict]
    ]
    tail = f"; {' and '.join(rest)}" if rest else ""
    return (
        f"The data support {better + worse} of {len(differences)} differences from {baseline} "
        f"({worse} worse, {better} better){tail}."
    )


def _describe_table(table: ResultTable, baseline: str) -> str:
    found = {
        verdict: [
            (row.variant, gap)
            for row in table.rows
            if (gap := row.difference) and gap.verdict == verdict
        ]
        for verdict in get_args(Verdict)
    }
    parts = [
        f"{verdict} than {baseline}: "
        + ", ".join(f"{name} ({_without_prefix(gap)})" for name, gap in found[verdict])
        for verdict in ("worse", "better")
        if found[verdict]
    ]
    if undecided := found["not distinguished"]:
        names = ", ".join(name for name, _ in undecided)
        seen = _seen([gap.detectable for _, gap in undecided])
        parts.append(f"not distinguished from {baseline}: {names}{seen}")
    same = [name for name, gap in found["no interval"] if _equal(gap)]
    if same:
        parts.append(f"the same as {baseline} in every pair: {', '.join(same)}")
    bare = [name for name, gap in found["no interval"] if not _equal(gap)]
    if bare:
        parts.append(f"without an interval: {', '.join(bare)}")
    return f"{table.name} ({table.metric_title or 'no result yet'}): {'; '.join(parts)}."


def _describe_steps(table: ResultTable, baseline: str) -> str:
    """State how much sooner or later than the baseline the variants solve the task.

    Only the variants whose difference is supported by the data are named; if there are none, the
    returned string is empty.
    """
    found = [
        f"{row.variant} {_without_prefix(row.solving.difference)}"
        for row in table.rows
        if row.solving
        and row.solving.difference
        and row.solving.difference.verdict in {"better", "worse"}
    ]
    return f"{table.name}, steps to solve against {baseline}: {', '.join(found)}." if found else ""


def _seen(detectable: Sequence[float | None]) -> str:
    """State the smallest differences that could have been detected."""
    known = [size for size in detectable if size is not None]
    if not known:
        return ""
    low, high = (fixed(size, decimals_of(size)) for size in (min(known), max(known)))
    sizes = low if low == high else f"{low} to {high}"
    return f" (a difference of {sizes} would have been detected)"


def _without_prefix(difference: Difference) -> str:
    return difference.sentence.removeprefix("supported: ")


def _equal(difference: Difference) -> bool:
    return difference.mean == 0 and difference.units > 1
