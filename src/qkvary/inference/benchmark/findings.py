"""What a measurement of decoding says, in sentences that are derived from its figures.

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
    is_reference,
    name_place,
    place_of,
    read_speeds,
    stand_beside_poster,
    wall_counts,
)
from qkvary.inference.benchmark.medians import Median
from qkvary.inference.benchmark.records import STOCK_RUNNERS, DecodeCase, DecodeRecord
from qkvary.text.names import count

_MIB = 2**20


def find_answers(record: DecodeRecord) -> tuple[str, ...]:
    """What was found, the most important first."""
    return (*_speed_answers(record), *_memory_answers(record), *_poster_answers(record))


def find_caveats(record: DecodeRecord) -> tuple[str, ...]:
    """What must be known before it is believed."""
    effort, question = record.question.effort, record.question
    caveats = [
        (
            f"One machine, {count(effort.threads, 'thread')}, device {effort.device}. "
            f"Medians of {count(effort.rounds, 'round')}: what another day or processor would "
            "change is not in their intervals."
        ),
        *_equality(record),
    ]
    if question.checkpoint is None:
        caveats.append(
            "The weights are random: speed and memory do not depend on them, texts would."
        )
    if wall_counts(record):
        caveats.append("Ratios go by the clock on the wall, since the work is shared.")
    if record.memory and record.memory[0].source == "VmHWM":
        caveats.append(
            "Peaks are high-water marks of resident memory, the least of three processes. At the "
            "peak the newest chunk of the prompt is not stored in every layer yet, so that a "
            "difference of peaks comes out smaller than that of the caches by up to that chunk's "
            "share."
        )
    return (*caveats, *record.notes)


def judge(found: Median, goal: float) -> str:
    """Whether a goal is met, by the whole interval."""
    if found.low >= goal:
        return "met"
    return "missed" if found.high < goal else "undecided"


def _speed_answers(record: DecodeRecord) -> Iterator[str]:
    speeds = [one for one in read_speeds(record) if one.row.runner == "cache"]
    for case in _places(speeds):
        here = [one for one in speeds if place_of(one.row.case) == place_of(case)]
        where = name_place(case)
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
                f"{gap.less.case.variant} at {gap.less.case.context:,} tokens: keeping what is "
                f"needed instead of K and V lowers the peak by {gap.measured_bytes / _MIB:.1f} "
                f"MiB, by the formula {gap.formula_bytes / _MIB:.1f} ({100 * gap.error:+.2f} %, "
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
    for beside in stand_beside_poster(record):
        low, high = beside.published
        if not beside.here:
            continue
        ours = "; ".join(f"{change.value:+.1f} % at {where}" for where, change in beside.here)
        _, without = beside.model[0]
        more = abs(without) > max(abs(low), abs(high))
        yield (
            f"Q-K=V against QKV, {beside.quantity}: the poster says {low:+.1f} to {high:+.1f} % "
            f"(1.2B on an A100), ours {ours}. In the poster's network the projection that is gone "
            f"makes {without:+.1f} % by itself, before anything is cached"
            f"{', which is more than was measured' if more else ''}."
        )


def _equality(record: DecodeRecord) -> Iterator[str]:
    """Whether everybody gave the same tokens, in each number format."""
    for dtype in record.question.dtypes:
        rows = [row for row in record.speed if row.case.dtype == dtype]
        apart = [row for row in rows if row.equal_tokens < row.timed_steps]
        if not apart:
            yield f"In {dtype} everybody gave the same tokens in every case."
            continue
        first = min(apart, key=lambda row: row.equal_tokens)
        yield (
            f"In {dtype} {len(apart)} of {len(rows)} answers leave the cache's after some tokens, "
            f"the first ({first.case.variant}, {first.runner}, {first.case.context:,} tokens) "
            f"after {first.equal_tokens} of {first.timed_steps}: rounding decides between almost "
            "equal logits, and everything behind depends on it."
        )


def _places(speeds: Sequence[Speed]) -> list[DecodeCase]:
    """One case for each context, batch and dtype."""
    cases = {place_of(one.row.case): one.row.case for one in reversed(speeds)}
    return list(reversed(cases.values()))


def _name(record: DecodeRecord, speed: Speed) -> str:
    """The variant, with its cache where several are measured."""
    cache, variant = speed.row.cache, speed.row.case.variant
    if cache is None or len(record.question.caches) == 1:
        return variant
    return f"{variant} ({cache.layout}, {format_options(cache)}, {cache.kernel})"
