"""Rates, ratios and memory gaps derived from a decode benchmark. Never imports torch.

Ratios are taken within a round, so that a slower machine slows both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qkvary.arch.models import as_model
from qkvary.arch.published_networks import gpt_1200m
from qkvary.costs.decoding import decode_step, weight_bytes
from qkvary.costs.formats import parse_format
from qkvary.inference.benchmark.medians import Median, median_ratio, median_with_interval
from qkvary.inference.benchmark.records import DecodeCase, DecodeRecord, MemoryRow, Runner, SpeedRow
from qkvary.literature.figures import BASELINE, load_published
from qkvary.text.names import count

POSTER = "poster-measured"
"""The published table to compare with."""
POSTER_VARIANT = "Q-K=V"
POSTER_FORMAT = "bf16"
LEAST_OVER_PREFIX, LEAST_OVER_TRANSFORMERS = 9.0, 2.0
"""The project's goals for the speedup over other runners on the reference case."""
MOST_OFF_FORMULA = 0.02
"""The largest relative error of a measured difference of peaks."""
REFERENCE = {"d_model": 256, "num_layers": 4, "num_heads": 4, "vocabulary": 512}
"""The network sizes of the reference case, with a prompt of 16 and 240 new tokens."""
REFERENCE_TOKENS = (256, 240)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of one runner on one case."""

    row: SpeedRow
    """The measurement."""
    first_seconds: Median
    """TTFT, the time to the first token."""
    token_seconds: Median
    """TPOT, the time per further token."""
    tokens_per_second: Median
    """The throughput of the whole batch, including prefill."""
    cpu_tokens_per_second: Median
    """The throughput by CPU time."""
    read_bytes_per_second: Median | None
    """Bytes of weights and cache read per second of a step."""
    share_of_stream: float | None
    """The share of the bandwidth of a sequential read in the same run."""
    over_prefix: Median | None
    """The speedup over running the whole prefix again."""
    over_stock: tuple[tuple[Runner, Median], ...]
    """The speedups over transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGap:
    """Two memory peaks and the difference that the cost model predicts."""

    more: MemoryRow
    """The peak with the larger cache."""
    less: MemoryRow
    """The peak with the smaller cache."""
    formula_bytes: int
    """The difference of the caches by the cost model."""

    @property
    def measured_bytes(self) -> int:
        """The difference of the peaks."""
        return self.more.answer_bytes - self.less.answer_bytes

    @property
    def error(self) -> float:
        """The relative error of the measured difference."""
        return self.measured_bytes / self.formula_bytes - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedComparison:
    """A published change compared with the measured ones."""

    quantity: str
    """The quantity that changes."""
    published: tuple[float, float]
    """The ends of the published range, in percent."""
    here: tuple[tuple[str, Median], ...]
    """Measured workloads and changes in percent."""
    model: tuple[tuple[str, float], ...]
    """Workloads and the changes of the published network by the cost model, in percent."""


def uses_wall_clock(record: DecodeRecord) -> bool:
    """Return whether ratios use wall-clock time: with several threads or a device."""
    settings = record.question.settings
    return settings.threads > 1 or settings.device != "cpu"


def compared_seconds(record: DecodeRecord, row: SpeedRow) -> Sequence[float]:
    """Return the times of which ratios are computed."""
    return row.times.seconds if uses_wall_clock(record) else row.times.cpu_seconds


def read_speeds(record: DecodeRecord) -> tuple[Speed, ...]:
    """Return the derived speeds of every row."""
    return tuple(_read_speed(record, row) for row in record.speed)


def workload_of(case: DecodeCase) -> tuple[int, int, str]:
    """Return the context, batch and dtype, which cases measured together share."""
    return case.context, case.batch, case.dtype


def describe_workload(case: DecodeCase) -> str:
    """Return the workload in words."""
    return f"{count(case.batch, 'answer')} of {case.context:,} tokens, {case.dtype}"


def find_row(record: DecodeRecord, case: DecodeCase, runner: Runner) -> SpeedRow | None:
    """Return the first row of a runner on a case."""
    rows = (row for row in record.speed if row.case == case and row.runner == runner)
    return next(rows, None)


def find_memory(record: DecodeRecord, case: DecodeCase) -> MemoryRow | None:
    """Return the peak of this project's first cache on a case."""
    rows = (row for row in record.memory if row.case == case and row.runner == "cache")
    return next(rows, None)


def is_long(record: DecodeRecord, row: MemoryRow) -> bool:
    """Return whether a row has the context at which peaks are compared."""
    contexts = {one.case.context for one in record.memory}
    return row.case.context == (record.question.settings.memory_context or max(contexts))


def compare_memory(record: DecodeRecord) -> tuple[MemoryGap, ...]:
    """Compare peaks of this project's caches at the long context.

    Separate keys and values are compared with what the sharing needs, and every variant with the
    first.
    """
    rows = [row for row in record.memory if row.runner == "cache" and is_long(record, row)]
    usual = [row for row in rows if row is find_memory(record, row.case)]
    found: list[MemoryGap] = []
    for row in usual:
        for other in rows:
            if other.case == row.case and _layout(other) == "split" != _layout(row):
                found += _gap(other, row)
    for row in usual[1:]:
        found += _gap(usual[0], row)
    return tuple(found)


def is_reference(record: DecodeRecord, case: DecodeCase) -> bool:
    """Return whether the speed goals apply to a case."""
    question = record.question
    sizes = [
        {name: getattr(network, name) for name in ("d_model", "num_layers", "vocabulary")}
        | {"num_heads": network.layers[0].num_heads}
        for network in question.networks
    ]
    return (
        question.checkpoint is None
        and all(size == REFERENCE for size in sizes)
        and (case.context, question.settings.new_tokens) == REFERENCE_TOKENS
        and (case.batch, case.dtype) == (1, "float32")
        and not uses_wall_clock(record)
    )


def compare_with_poster(record: DecodeRecord) -> tuple[PublishedComparison, ...]:
    """Compare the poster's changes of Q-K=V against QKV with ours and the cost model's.

    Empty if the two variants were not measured together.
    """
    memories, speeds = tuple(_memory_changes(record)), tuple(_speed_changes(record))
    if not speeds:
        return ()
    table = load_published(POSTER)

    def published(row: str) -> tuple[float, float]:
        values = [table.figure(row, column).value or 0.0 for column in ("low", "high")]
        return values[0], values[1]

    memory, speed = table.rows
    return (
        PublishedComparison(
            quantity="peak memory",
            published=published(memory),
            here=memories,
            model=tuple(_model_changes(memory=True)),
        ),
        PublishedComparison(
            quantity="tokens per second",
            published=published(speed),
            here=speeds,
            model=tuple(_model_changes(memory=False)),
        ),
    )


def _read_speed(record: DecodeRecord, row: SpeedRow) -> Speed:
    times, case = row.times, row.case
    tokens = record.question.settings.new_tokens
    steps = [
        (whole - first) / (tokens - 1)
        for whole, first in zip(times.seconds, times.first_seconds, strict=True)
    ]
    read = row.step_read_bytes
    bandwidth = None if read is None else median_with_interval([read / step for step in steps])
    stream = median_with_interval(record.stream_bytes_per_second).value
    prefix = find_row(record, case, "prefix")
    ours = row.runner == "cache"
    stock: list[tuple[Runner, SpeedRow]] = [
        (runner, other)
        for runner in record.question.stock
        if ours and (other := find_row(record, case, runner)) is not None
    ]
    seconds = compared_seconds(record, row)
    return Speed(
        row=row,
        first_seconds=median_with_interval(times.first_seconds),
        token_seconds=median_with_interval(steps),
        tokens_per_second=_rate(case.batch * tokens, times.seconds),
        cpu_tokens_per_second=_rate(case.batch * tokens, times.cpu_seconds),
        read_bytes_per_second=bandwidth,
        share_of_stream=None if bandwidth is None else bandwidth.value / stream,
        over_prefix=(
            median_ratio(seconds, compared_seconds(record, prefix)) if ours and prefix else None
        ),
        over_stock=tuple(
            (runner, median_ratio(seconds, compared_seconds(record, other)))
            for runner, other in stock
        ),
    )


def _rate(amount: int, seconds: Sequence[float]) -> Median:
    return median_with_interval([amount / one for one in seconds])


def _layout(row: MemoryRow) -> str | None:
    return None if row.cache is None else row.cache.layout


def _gap(more: MemoryRow, less: MemoryRow) -> Iterator[MemoryGap]:
    """Yield the positive difference of two peaks, if the formula gives one."""
    if more.cache_formula_bytes is None or less.cache_formula_bytes is None:
        return
    between = more.cache_formula_bytes - less.cache_formula_bytes
    if between < 0:
        yield MemoryGap(more=less, less=more, formula_bytes=-between)
    elif between > 0:
        yield MemoryGap(more=more, less=less, formula_bytes=between)


def _memory_changes(record: DecodeRecord) -> Iterator[tuple[str, Median]]:
    for row in record.memory:
        base = find_memory(record, _as_baseline(row.case))
        mine = row.case.variant == POSTER_VARIANT and row is find_memory(record, row.case)
        if mine and base is not None:
            change = 100 * (row.total_bytes / base.total_bytes - 1)
            yield describe_workload(row.case), Median(change, change, change)


def _speed_changes(record: DecodeRecord) -> Iterator[tuple[str, Median]]:
    for row in record.speed:
        base = find_row(record, _as_baseline(row.case), "cache")
        mine = row.case.variant == POSTER_VARIANT and row is find_row(record, row.case, "cache")
        if mine and base is not None:
            ratio = median_ratio(compared_seconds(record, row), compared_seconds(record, base))
            ends = (ratio.value, ratio.low, ratio.high)
            yield describe_workload(row.case), Median(*(100 * (end - 1) for end in ends))


def _as_baseline(case: DecodeCase) -> DecodeCase:
    return DecodeCase(variant=BASELINE, context=case.context, batch=case.batch, dtype=case.dtype)


def _model_changes(*, memory: bool) -> Iterator[tuple[str, float]]:
    form = parse_format(POSTER_FORMAT)
    for batch, context in ((1, 1), (1, 2048), (16, 2048)):
        held: list[float] = []
        for label in (BASELINE, POSTER_VARIANT):
            model = as_model(gpt_1200m(label))
            step = decode_step(model, batch=batch, context=context, weights=form, cache=form)
            weights = weight_bytes(model, form) if memory else step.weight_bytes
            held.append(weights + step.cache_bytes)
        ratio = held[1] / held[0] if memory else held[0] / held[1]
        place = "no context" if context == 1 else f"{batch} x {context:,} tokens"
        yield place, 100 * (ratio - 1)
