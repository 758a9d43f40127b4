"""Rates, ratios and memory gaps derived from a decode benchmark. Never imports torch.

Ratios are taken within a round, so that a slower machine slows both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from decoding.records import DecodeCase, DecodeRecord, MemoryRow, Runner, SpeedRow
from qkvary.text.names import count
from timing.medians import Median, median_ratio, median_with_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of one runner on one case."""

    row: SpeedRow
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
    over_stock: dict[Runner, Median]
    """The speedups over transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGap:
    """Two memory peaks and the difference that the cost model predicts."""

    more: MemoryRow
    less: MemoryRow

    @property
    def formula_bytes(self) -> int:
        """The difference of the caches by the cost model."""
        return (self.more.cache_formula_bytes or 0) - (self.less.cache_formula_bytes or 0)

    @property
    def measured_bytes(self) -> int:
        """The difference of the peaks."""
        return self.more.answer_bytes - self.less.answer_bytes

    @property
    def error(self) -> float:
        """The relative error of the measured difference."""
        return self.measured_bytes / self.formula_bytes - 1


def uses_wall_clock(record: DecodeRecord) -> bool:
    """Return whether ratios use wall-clock time: with several threads or a device."""
    settings = record.question.settings
    return settings.threads > 1 or settings.device != "cpu"


def compared_seconds(record: DecodeRecord, row: SpeedRow) -> Sequence[float]:
    """Return the times from which ratios are computed."""
    return row.times.seconds if uses_wall_clock(record) else row.times.cpu_seconds


def describe_workload(case: DecodeCase) -> str:
    """Return the workload in words."""
    return f"{count(case.batch, 'answer')} of {case.context:,} tokens, {case.dtype}"


def read_speeds(record: DecodeRecord) -> tuple[Speed, ...]:
    """Return the derived speeds of every row."""
    stream = median_with_interval(record.stream_bytes_per_second).value
    return tuple(_read_speed(record, row, stream) for row in record.speed)


def compare_memory(record: DecodeRecord) -> tuple[MemoryGap, ...]:
    """Compare peaks of this project's caches at the long context.

    Separate keys and values are compared with what the sharing needs, and every variant with the
    first.
    """
    contexts = [row.case.context for row in record.memory]
    longest = record.question.settings.memory_context or max(contexts, default=0)
    by_case: dict[DecodeCase, list[MemoryRow]] = {}
    for row in record.memory:
        if row.cache is not None and row.case.context == longest:
            by_case.setdefault(row.case, []).append(row)
    usual = [rows[0] for rows in by_case.values()]
    pairs = [
        (other, rows[0])
        for rows in by_case.values()
        for other in rows[1:]
        if "split" in {row.cache.layout for row in (other, rows[0]) if row.cache}
    ]
    return tuple(_gaps((*pairs, *((usual[0], row) for row in usual[1:]))))


def _gaps(pairs: Sequence[tuple[MemoryRow, MemoryRow]]) -> Iterator[MemoryGap]:
    """Yield the positive differences of peaks, where the formula gives one."""
    for pair in pairs:
        less, more = sorted(pair, key=lambda row: row.cache_formula_bytes or 0)
        if less.cache_formula_bytes != more.cache_formula_bytes:
            yield MemoryGap(more=more, less=less)


def _read_speed(record: DecodeRecord, row: SpeedRow, stream: float) -> Speed:
    times, case = row.times, row.case
    tokens = record.question.settings.new_tokens
    steps = [
        (whole - first) / (tokens - 1)
        for whole, first in zip(times.seconds, times.first_seconds, strict=True)
    ]
    read = row.step_read_bytes
    bandwidth = None if read is None else median_with_interval([read / step for step in steps])
    over: dict[Runner, Median] = {}
    if row.runner == "cache":
        for other in record.speed:
            if other.case == case and other.runner != "cache":
                seconds = compared_seconds(record, other)
                over[other.runner] = median_ratio(compared_seconds(record, row), seconds)
    return Speed(
        row=row,
        first_seconds=median_with_interval(times.first_seconds),
        token_seconds=median_with_interval(steps),
        tokens_per_second=_rate(case.batch * tokens, times.seconds),
        cpu_tokens_per_second=_rate(case.batch * tokens, times.cpu_seconds),
        read_bytes_per_second=bandwidth,
        share_of_stream=None if bandwidth is None else bandwidth.value / stream,
        over_prefix=over.pop("prefix", None),
        over_stock=over,
    )


def _rate(amount: int, seconds: Sequence[float]) -> Median:
    return median_with_interval([amount / one for one in seconds])
