"""Writes the short answer of a study in plain sentences, by rule. Never imports torch.

Each sentence follows from intervals that are corrected for all comparisons with the baseline, or
for all planned contrasts. If a variant's interval excludes zero, the variant is better or has a
cost. Otherwise there are two cases. If the interval excludes a loss of ``MARGIN`` times the
baseline's improvement over guessing, the variant has no measurable cost, and the sentence gives the
end of the interval after "at most". If the interval includes such a loss, the variant is undecided.
``answers`` states every comparison in full.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from qkvary.arch.descriptions import name_changes
from qkvary.arch.labels import parse_variant
from qkvary.studies.results.summary import (
    Contrast,
    Difference,
    PublishedComparison,
    ResultTable,
    Verdict,
)
from qkvary.text.names import count, listed
from qkvary.text.numbers import decimals_of, fixed

MARGIN = 0.02
"""A variant has no measurable cost if its interval excludes costs above this share of the
baseline's improvement over guessing."""
MOST_NAMED = 6
"""Maximum number of variants, or groups of similar variants, that a sentence names. Of those
without a measurable cost, the ones with the smallest limits are preferred."""
MOST_OTHER_TABLES = 2
"""Maximum number of other tables that get their own sentence."""
MOST_CHARACTERS = 400
"""Maximum length of a sentence about several planned contrasts, in characters."""
_DECIDED: tuple[Verdict, ...] = ("better", "worse")
_Planned = Sequence[tuple[Contrast, Difference]]


def write_headline(
    tables: Sequence[ResultTable],
    contrasts: Sequence[Contrast],
    baseline: str,
    own_tables: Collection[str] = (),
) -> tuple[str, list[str]]:
    """Return the name of the table that the short answer is about, and the answer's sentences.

    The table with the most comparisons that have an interval is chosen, whether it covers one task
    or several. Of tied tables, the table with the most decided comparisons is chosen, then the
    table that comes first.

    ``own_tables`` are tables to which settings are assigned by name. Such a table is chosen only if
    no other table has an interval. The answer then begins with the contrasts across settings if at
    least one of them is decided.
    """
    shown = [table for table in tables if table.kind != "setting" and _compared(table)]
    if not shown:
        return "", []

    def rank(table: ResultTable) -> tuple[bool, int, int]:
        gaps = _compared(table).values()
        intervals = sum(gap.low is not None for gap in gaps)
        decided = sum(gap.verdict in _DECIDED for gap in gaps)
        return table.name not in own_tables and intervals > 0, intervals, decided

    first = max(shown, key=rank)
    planned = _planned(first, [one for one in contrasts if one.reference != baseline])
    labels = {row.variant for table in tables for row in table.rows}
    # A contrast across settings names both of its tables itself; any other gets its only table.
    across = [
        (replace(one, reference=f'{one.reference} with "{one.rows[0].table}"'), gap)
        if one.variant in labels
        else (one, gap)
        for one, gap in planned
        if len(one.rows) == 1
    ]
    is_across = first.name in own_tables and any(gap.verdict in _DECIDED for _, gap in across)
    where = f"{_where(first, own_tables)}, " if is_across or len(shown) > 1 else ""
    if is_across:
        sentences = _across(first, across) + _describe(first, baseline, where)
    else:
        sentences = _describe(first, baseline, where)
        sentences += _direct(first, planned)
    averages = [set(table.settings) for table in shown if table.kind == "average"]
    others = [
        (table, costs)
        for table in shown
        if table is not first
        and not (table.kind == "task" and any(set(table.settings) <= one for one in averages))
        and (costs := _list_costs(table, baseline))
    ]
    for table, costs in others[:MOST_OTHER_TABLES]:
        sentences.append(f"{_where(table, own_tables)}, {'; '.join(costs)}.")
    if len(others) > MOST_OTHER_TABLES:
        more = count(len(others) - MOST_OTHER_TABLES, "more table")
        sentences.append(f'For the differences in {more}, see "Every comparison in words".')
    if not sentences:
        pairs = "two pairs of runs with different seeds"
        sentences = [f"No variant can be compared with {baseline} yet: a comparison needs {pairs}."]
    return first.name, sentences


def describe_repeats(published: Sequence[PublishedComparison]) -> tuple[str, ...]:
    """State the number of published figures that lie in the prediction intervals."""
    judged = [repeats for one in published for repeats in one.repeats]
    if not judged:
        return ()
    figures = count(len(judged), "measured published figure")
    return (f"{sum(judged)} of {figures} lie in the 95 % prediction intervals of these runs.",)


def _where(table: ResultTable, own_tables: Collection[str]) -> str:
    """Return the opening words of a sentence about a table."""
    if table.name in own_tables:
        return f'With "{table.name}"'
    if table.kind == "average":
        name, _, tasks = table.name.partition(" of ")
        return f"On the {name} of {listed(tasks.split(', '))}"
    return f"On {table.name}"


def _compared(table: ResultTable) -> dict[str, Difference]:
    """Map each variant to its difference. Variants without a finished pair of runs are left out."""
    return {
        row.variant: row.difference
        for row in table.rows
        if row.difference and row.difference.units > 0
    }


def _describe(table: ResultTable, baseline: str, where: str) -> list[str]:
    """State the cost of each variant against the baseline, or that the cost is undecided."""
    groups = _group(table, baseline)
    unit, higher = _unit(table), table.higher_is_better
    whole = _learnt(table, baseline)
    undecided = sorted(groups["not distinguished"], key=lambda group: _most(group[1], higher))
    mosts = [_most(gaps, higher) for _, gaps in undecided]
    near, sized = bisect_left(mosts, MARGIN * whole), bisect_left(mosts, whole or math.inf)
    parts = list[str]()
    free = [
        (name, f"(at most {_round_up(_most(gaps, higher))}{'' if index else unit})")
        for index, (name, gaps) in enumerate(_first_named(undecided[:near]))
    ]
    if len(free) == 1:
        parts.append(f"{free[0][0]} has no measurable cost {free[0][1]}")
    elif free:
        parts.append(f"there is no measurable cost for {listed([' '.join(one) for one in free])}")
    same = [
        group
        for group in groups["no interval"]
        if all(gap.mean == 0 and gap.units > 1 for gap in group[1])
    ]
    if same:
        parts.append(f"{listed(_names(same))} had the same result as {baseline} in every pair")
    parts += _list_costs(table, baseline)
    ranges = [
        f"{name} (from {_round_up(_most(gaps, not higher))}{'' if index else unit} better "
        f"to {_round_up(_most(gaps, higher))} worse)"
        for index, (name, gaps) in enumerate(_first_named(undecided[near:sized]))
    ]
    if ranges:
        parts.append(f"not decided: {listed(ranges)}")
    if vague := _names(undecided[sized:]):
        parts.append(f"these runs are too few to say anything about {listed(vague, 'or')}")
    if parts:
        parts[0] = f"{where}{parts[0]}"
    return [f"{text[:1].upper()}{text[1:]}." for text in parts]


def _learnt(table: ResultTable, baseline: str) -> float:
    """Return the baseline's improvement over guessing, but at most the baseline's mean metric.

    Returns 0 if the improvement is unknown or negative. The upper limit matters if the baseline
    ends at a small loss. A difference may then be small compared with the improvement, but large
    compared with the final loss.
    """
    mean = table.row(baseline).mean
    if mean is None or table.scale is None or table.scale.learnt(mean) <= 0:
        return 0.0
    return min(abs(mean - table.scale.guess), abs(mean))


def _list_costs(table: ResultTable, baseline: str) -> list[str]:
    """State the sizes of the decided differences: first costs, then gains, smallest first."""
    unit, found = _unit(table), list[str]()
    for verdict, verb in (("worse", "costs"), ("better", "is better by")):
        groups = _group(table, baseline)[verdict]
        groups.sort(key=lambda group: max(map(_magnitude, group[1])))
        named, rest = _split_named(groups)
        decimals = _decimals([gap for _, gaps in named for gap in gaps])
        texts = [f"{name} {_sizes(gaps, decimals)}" for name, gaps in named]
        if rest:
            largest = max((gap for _, gaps in rest for gap in gaps), key=_magnitude)
            texts.append(f"{len(rest)} others up to {_size(largest, decimals)}")
        if texts:
            texts[0] = f"{groups[0][0]} {verb} {_sizes(groups[0][1], decimals)}{unit}"
            found.append(listed(texts))
    return found


_Group = tuple[str, Sequence[Difference]]
"""A change to the baseline in words, and the differences of all variants that make this change. A
variant is described by its label if its change has no name, if another variant of the table makes
the same change and others, or if verdicts on the change differ."""


def _group(table: ResultTable, baseline: str) -> Mapping[str, list[_Group]]:
    """Group variants that change the baseline in the same way and have the same verdict.

    Returns the groups of each verdict.
    """
    changes = {row.variant: _changes(row.variant, baseline) for row in table.rows}
    ambiguous = {name for name, is_whole in changes.values() if not is_whole}
    words: dict[str, dict[str, Difference]] = {}
    for variant, gap in _compared(table).items():
        name, _ = changes[variant]
        words.setdefault(variant if name in ambiguous else name, {})[variant] = gap
    groups = defaultdict[str, list[_Group]](list)
    for name, members in words.items():
        verdicts = {gap.verdict for gap in members.values()}
        if len(verdicts) == 1:
            groups[verdicts.pop()].append((name, [*members.values()]))
            continue
        for variant, gap in members.items():
            groups[gap.verdict].append((variant, [gap]))
    return groups


def _changes(label: str, baseline: str) -> tuple[str, bool]:
    """Return the changes that have names, and whether they are all."""
    try:
        return name_changes(parse_variant(label), parse_variant(baseline))
    except ValueError:
        return "", False


def _first_named(groups: Sequence[_Group]) -> list[_Group]:
    """Return the groups that fit in a sentence, then all other groups merged into one."""
    named, rest = _split_named(groups)
    others = [gap for _, gaps in rest for gap in gaps]
    return [*named, *([(f"{len(rest)} others", others)] if rest else [])]


def _split_named(groups: Sequence[_Group]) -> tuple[list[_Group], list[_Group]]:
    """Return the groups that a sentence names, and the other groups.

    Groups that change only one thing are preferred.
    """
    if len(groups) <= MOST_NAMED:
        return [*groups], []
    single_first = sorted(groups, key=lambda group: " with " in group[0])
    names = {name for name, _ in single_first[: MOST_NAMED - 1]}
    named = [group for group in groups if group[0] in names]
    return named, [group for group in groups if group[0] not in names]


def _names(groups: Sequence[_Group]) -> list[str]:
    return [name for name, _ in _first_named(groups)]


def _most(gaps: Sequence[Difference], higher_is_better: bool) -> float:
    """Return the largest cost that the intervals allow."""
    return max(
        -gap.low if higher_is_better else gap.high
        for gap in gaps
        if gap.low is not None and gap.high is not None
    )


def _round_up(size: float, decimals: int | None = None) -> str:
    """Write a size rounded up, with two digits or a given number of decimals."""
    decimals = decimals_of(size) if decimals is None else decimals
    return fixed(math.ceil(size * 10**decimals - 1e-9) / 10**decimals, decimals)


def _sizes(gaps: Sequence[Difference], decimals: int) -> str:
    """State the size of a difference, or the range of the sizes of several differences."""
    texts = sorted({_size(gap, decimals) for gap in gaps}, key=float)
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def _magnitude(gap: Difference) -> float:
    return abs(gap.mean or 0.0)


def _decimals(gaps: Sequence[Difference]) -> int:
    """Return the largest number of decimals that the spread of a difference justifies."""
    return max((_supported(gap) for gap in gaps), default=0)


def _supported(gap: Difference) -> int:
    mean = _magnitude(gap)
    spread = (gap.high - gap.low) / 2 if gap.low is not None and gap.high is not None else None
    decimals = max(0, decimals_of(spread) - 1)
    while decimals < 6 and mean and float(f"{mean:.{decimals}f}") == 0:
        decimals += 1
    return decimals


def _size(gap: Difference, decimals: int) -> str:
    return f"{_magnitude(gap):.{decimals}f}"


def _planned(table: ResultTable, contrasts: Sequence[Contrast]) -> _Planned:
    """Return the contrasts in ``table`` or across settings that have an interval."""
    return [
        (contrast, row.difference)
        for contrast in contrasts
        for row in contrast.rows
        if row.metric == table.metric
        and (row.table == table.name or len(contrast.rows) == 1)
        and row.difference.low is not None
    ]


def _across(table: ResultTable, planned: _Planned) -> list[str]:
    """State the contrasts across settings, with upper limits of the undecided differences."""
    open_ones = [one for one in planned if one[1].verdict not in _DECIDED]

    def write(named: _Planned) -> str:
        bounds = [max(abs(gap.low or 0.0), abs(gap.high or 0.0)) for _, gap in named]
        decimals = max(map(decimals_of, bounds))
        texts = [
            f"{one.variant} against {one.reference} (up to {_round_up(most, decimals)})"
            for (one, _), most in zip(named, bounds, strict=True)
        ]
        return f"Not decided: {listed(texts)}"

    return [*_direct(table, planned), *_shorten(open_ones, write)]


def _direct(table: ResultTable, planned: _Planned) -> list[str]:
    """State the decided differences between variants in one sentence."""
    decided = [one for one in planned if one[1].verdict in _DECIDED]

    def write(named: _Planned) -> str:
        decimals = _decimals([gap for _, gap in named])
        texts = [
            f"{one.variant} is {gap.verdict} than {one.reference} by {_size(gap, decimals)}"
            for one, gap in named
        ]
        return f"Compared directly: {listed(texts)}{_unit(table)}"

    return _shorten(decided, write)


def _shorten(planned: _Planned, write: Callable[[_Planned], str]) -> list[str]:
    """Return a sentence about as many contrasts as fit, or nothing if there are no contrasts."""
    found = list[str]()
    for number in range(1, len(planned) + 1):
        more = len(planned) - number
        text = f"{write(planned[:number])}{f'; {more} more below' if more else ''}."
        if not found or len(text) <= MOST_CHARACTERS:
            found = [text]
    return found


def _unit(table: ResultTable) -> str:
    """Return the unit of a table's metric, with a leading space."""
    if table.metric.endswith("loss"):
        return " nats"
    return f" of {table.metric_title}"
