"""The conclusions of a decode benchmark, in sentences. Never imports torch.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qkvary.costs.formats import format_options
from qkvary.inference.benchmark.comparisons import (
    LEAST_OVER_PREFIX,
    LEAST_OVER_TRANSFORMERS,
    MOST_OFF_FORMULA,
    Speed,
    compare_memory,
    compare_with_poster,
    describe_workload,
    is_reference,
    read_speeds,
    uses_wall_clock,
    workload_of,
)
from qkvary.inference.benchmark.medians import Median
from qkvary.inference.benchmark.records import STOCK_RUNNERS, DecodeCase, DecodeRecord
from qkvary.text.names import count

_MIB = 2**20


def find_answers(record: DecodeRecord) -> tuple[str, ...]:
    """Return the conclusions, the most important first."""
    return (*_speed_answers(record), *_memory_answers(record), *_poster_answers(record))


def find_caveats(record: DecodeRecord) -> tuple[str, ...]:
    """Return the limitations of the measurement."""
    settings, question = record.question.settings, record.question
    caveats = [
        (
            f"One machine, {count(settings.threads, 'thread')}, device {settings.device}. "
            f"Medians of {count(settings.rounds, 'round')}; their intervals do not cover another "
            "day or processor."
        ),
        *_equality(record),
    ]
    if question.checkpoint is None:
        caveats.append("The weights are random; this affects neither speed nor memory.")
    if uses_wall_clock(record):
        caveats.append("Ratios use wall-clock time, since several threads or a device work.")
    if record.memory and record.memory[0].source == "VmHWM":
        caveats.append(
            "Peaks are high-water marks of resident memory, the minimum of three processes. At the "
            "peak not every layer has stored the newest chunk of the prompt, so that peaks may "
            "differ less than the caches, by up to that chunk's share."
        )
    return (*caveats, *record.notes)


def judge(found: Median, goal: float) -> str:
    """Return whether the whole interval meets a goal."""
    if found.low >= goal:
        return "met"
    return "missed" if found.high < goal else "undecided"


def _speed_answers(record: DecodeRecord) -> Iterator[str]:
    speeds = [one for one in read_speeds(record) if one.row.runner == "cache"]
    for case in _places(speeds):
        here = [one for one in speeds if workload_of(one.row.case) == workload_of(case)]
        where = describe_workload(case)
        over = [(_name(record, one), one.over_prefix) for one in here if one.over_prefix]
        if over:
            goal = LEAST_OVER_PREFIX if is_reference(record, case) else None
            yield f"Times as fast as running the prefix again, {where}: {_list(over, goal)}."
        for runner in STOCK_RUNNERS:
            stock = [(_name(record, one), dict(one.over_stock).get(runner)) for one in here]
            found = [(name, ratio) for name, ratio in stock if ratio is not None]
            if found:
                wanted = is_reference(record, case) and runner == "transformers"
                goal = LEAST_OVER_TRANSFORMERS if wanted else None
                kind = "its static cache" if runner == "transformers-static" else "generate"
                yield f"Times as fast as transformers ({kind}), {where}: {_list(found, goal)}."


def _list(found: Sequence[tuple[str, Median]], goal: float | None) -> str:
    parts = [f"{name} {one.value:.3g} [{one.low:.3g}, {one.high:.3g}]" for name, one in found]
    said = ", ".join(parts)
    if goal is None:
        return said
    verdicts = {name: judge(one, goal) for name, one in found}
    if len(set(verdicts.values())) == 1:
        return f"{said}; the goal of {goal:g} is {next(iter(verdicts.values()))}"
    each = ", ".join(f"{name} {verdict}" for name, verdict in verdicts.items())
    return f"{said}; the goal of {goal:g}: {each}"


def _memory_answers(record: DecodeRecord) -> Iterator[str]:
    gaps = compare_memory(record)
    for gap in gaps:
        same = gap.more.case == gap.less.case
        if same and gap.less.cache is not None:
            verdict = "within" if abs(gap.error) <= MOST_OFF_FORMULA else "not within"
            yield (
                f"{gap.less.case.variant} at {gap.less.case.context:,} tokens: storing only what "
                f"is needed instead of K and V lowers the peak by {gap.measured_bytes / _MIB:.1f} "
                f"MiB; the formula gives {gap.formula_bytes / _MIB:.1f} ({100 * gap.error:+.2f} %, "
                f"{verdict} {100 * MOST_OFF_FORMULA:.0f} %)."
            )
    others = [gap for gap in gaps if gap.more.case != gap.less.case]
    if others:
        worst = max(others, key=lambda gap: abs(gap.error))
        base = others[0].more.case.variant
        yield (
            f"Peaks of the other variants differ from {base}'s as their caches do, within "
            f"{100 * abs(worst.error):.2f} % ({worst.less.case.variant})."
        )


def _poster_answers(record: DecodeRecord) -> Iterator[str]:
    for comparison in compare_with_poster(record):
        low, high = comparison.published
        if not comparison.here:
            continue
        ours = "; ".join(f"{change.value:+.1f} % at {where}" for where, change in comparison.here)
        _, without = comparison.model[0]
        more = abs(without) > max(abs(low), abs(high))
        yield (
            f"Q-K=V against QKV, {comparison.quantity}: the poster says {low:+.1f} to {high:+.1f} "
            f"% (1.2B on an A100), ours {ours}. In the poster's network, removing the projection "
            f"alone gives {without:+.1f} %, before anything is cached"
            f"{', which is more than was measured' if more else ''}."
        )


def _equality(record: DecodeRecord) -> Iterator[str]:
    """Report for each dtype whether all runners gave the same tokens."""
    for dtype in record.question.dtypes:
        rows = [row for row in record.speed if row.case.dtype == dtype]
        apart = [row for row in rows if row.equal_tokens < row.timed_steps]
        if not apart:
            yield f"In {dtype} all runners gave the same tokens in every case."
            continue
        first = min(apart, key=lambda row: row.equal_tokens)
        yield (
            f"In {dtype} {len(apart)} of {len(rows)} answers differ from the cache's after some "
            f"tokens, the first ({first.case.variant}, {first.runner}, {first.case.context:,} "
            f"tokens) after {first.equal_tokens} of {first.timed_steps}: rounding decides between "
            "almost equal logits, and all later tokens depend on the choice."
        )


def _places(speeds: Sequence[Speed]) -> list[DecodeCase]:
    cases = {workload_of(one.row.case): one.row.case for one in reversed(speeds)}
    return list(reversed(cases.values()))


def _name(record: DecodeRecord, speed: Speed) -> str:
    cache, variant = speed.row.cache, speed.row.case.variant
    if cache is None or len(record.question.caches) == 1:
        return variant
    return f"{variant} ({cache.layout}, {format_options(cache)}, {cache.kernel})"
