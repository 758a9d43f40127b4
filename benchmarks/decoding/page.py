"""The report of a measurement of decoding. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from decoding.comparisons import (
    MemoryGap,
    Speed,
    compare_memory,
    compared_seconds,
    describe_workload,
    read_speeds,
    uses_wall_clock,
)
from decoding.networks import name_variant
from decoding.records import DecodeRecord, MemoryRow, Runner, SpeedRow, to_json
from qkvary.arch.caches import CacheOptions
from qkvary.arch.canonical import to_dict
from qkvary.costs.formats import format_options
from qkvary.reports.report import Code, Pairs, Report, Section
from qkvary.reports.tables import Cell, Table, label, named, number, pick, plain, tabulate, word
from qkvary.text import names, numbers
from timing.medians import Median, median_ratio, median_with_interval

QUESTION = "How fast does a cache decode that stores what the sharing needs, in how much memory?"
BASE, SHARED = "QKV", "Q-K=V"
"""The variants whose change publications give."""
NAMES: dict[Runner, str] = {
    "cache": "cache",
    "prefix": "prefix again",
    "transformers": "transformers",
    "transformers-static": "its static cache",
}
"""The titles of the runners."""


def decode_report(record: DecodeRecord) -> Report:
    """Return the report of a measurement of decoding."""
    speeds = read_speeds(record)
    memory = (memory_table(record), gap_table(record)) if record.memory else ()
    answers = tuple(_answers(record))
    caveats = tuple(_caveats(record))
    return Report(
        subject="measurement: decoding",
        question=QUESTION,
        lead=_describe_networks(record),
        answer=answers,
        caveats=caveats,
        sections=tuple(
            section
            for section in (
                Section(
                    key="speed", title="Speed", blocks=tuple(_speed_tables(record)), brief=True
                ),
                Section(key="memory", title="Memory", blocks=memory, brief=True),
                Section(
                    key="provenance",
                    title="How it was measured",
                    blocks=(Code((record.command,)), Pairs(tuple(_describe_provenance(record)))),
                ),
            )
            if section.blocks
        ),
        data={
            **to_dict(record),
            "answers": answers,
            "caveats": caveats,
            "speeds": [_speed_data(speed) for speed in speeds],
            "gaps": [_gap_data(gap) for gap in compare_memory(record)],
        },
        record=to_json(record),
    )


def memory_table(record: DecodeRecord) -> Table:
    """Return the table of peak memory, one answer per row."""
    source = "; ".join(sorted({row.source for row in record.memory}))
    note = (
        f"Peak ({source}): what the answer added to the process that had loaded the network and "
        "decoded a few tokens; momentary: the peak without the cache; total: peak and weights. "
        f"The prompt is passed in chunks of {record.question.settings.memory_chunk} tokens. "
        "Networks of one size in transformers were measured once."
    )
    return tabulate(
        "memory",
        "Peak memory of one answer, each in a fresh process",
        record.memory,
        label("variant=case.variant"),
        word("runner=", "runner", lambda row: plain(row.runner, _name_runner(row))),
        number("context=case.context", write=numbers.whole),
        number("batch=case.batch"),
        word("dtype=case.dtype"),
        number("weight_bytes", "weights", _mib, below="MiB"),
        number("cache_formula_bytes", "formula", _mib, below="MiB"),
        number("cache_bytes", "allocated", _mib, below="MiB"),
        number("answer_bytes", "peak", _mib, below="MiB"),
        number(
            "momentary_bytes=",
            "momentary",
            lambda row: _mib(row.answer_bytes - row.cache_bytes),
            below="MiB",
        ),
        number("total_bytes", "total", _mib, below="MiB"),
        notes=[note],
    )


def gap_table(record: DecodeRecord) -> Table:
    """Return the measured differences of peaks with those of the formula."""
    return tabulate(
        "gaps",
        "What a smaller cache lowers the peak by",
        compare_memory(record),
        word("more", "from", lambda row: named(_name(row))),
        word("less", "to", lambda row: named(_name(row))),
        number("context=more.case.context", write=numbers.whole),
        number("formula_bytes", "formula", _mib, below="MiB"),
        number("measured_bytes", "measured", _mib, below="MiB"),
        number(
            "error", "off by", lambda error: numbers.fixed(100 * error, 2, sign=True), below="%"
        ),
        notes=["Formula: the difference of the caches by the cost model; no weights are in it."],
    )


def _answers(record: DecodeRecord) -> Iterator[str]:
    """Yield what Q-K=V and each smaller cache change."""
    ours: dict[tuple[int, int, str], dict[str, SpeedRow]] = {}
    for row in record.speed:
        if row.runner == "cache":
            ours.setdefault(row.case.workload, {}).setdefault(row.case.variant, row)
    for rows in ours.values():
        if {BASE, SHARED} <= rows.keys():
            base, row = rows[BASE], rows[SHARED]
            ratio = median_ratio(compared_seconds(record, row), compared_seconds(record, base))
            value, low, high = (100 * (end - 1) for end in (ratio.value, ratio.low, ratio.high))
            yield (
                f"Tokens per second of {SHARED} against {BASE}, {describe_workload(row.case)}: "
                f"{value:+.1f} % [{low:+.1f}, {high:+.1f}]."
            )
    for gap in compare_memory(record):
        yield (
            f"{_name(gap.less)} instead of {_name(gap.more)} at {gap.less.case.context:,} tokens "
            f"lowers the peak by {_mib(gap.measured_bytes)} MiB; the formula gives "
            f"{_mib(gap.formula_bytes)} ({100 * gap.error:+.2f} %)."
        )


def _caveats(record: DecodeRecord) -> Iterator[str]:
    settings, question = record.question.settings, record.question
    yield (
        f"One machine, {names.count(settings.threads, 'thread')}, device {settings.device}. "
        f"Medians of {names.count(settings.rounds, 'round')}; their intervals do not cover another "
        "day or processor."
    )
    for dtype in question.dtypes:
        rows = [row for row in record.speed if row.case.dtype == dtype]
        apart = [row for row in rows if row.equal_tokens < row.timed_steps]
        if not apart:
            yield f"In {dtype} all runners gave the same tokens in every case."
            continue
        first = min(apart, key=lambda row: row.equal_tokens)
        yield (
            f"In {dtype} {len(apart)} of {len(rows)} answers differ from the cache's, the first "
            f"({first.case.variant}, {first.runner}) after {first.equal_tokens} of "
            f"{first.timed_steps} tokens: rounding decides between almost equal logits."
        )
    if question.checkpoint is None:
        yield "The weights are random; this affects neither speed nor memory."
    if record.memory and record.memory[0].source == "VmHWM":
        yield (
            "Peaks are high-water marks of resident memory, the minimum of three processes. At the "
            "peak not every layer has stored the newest chunk of the prompt, so that peaks may "
            "differ less than the caches, by up to that chunk's share."
        )
    yield from record.notes


def _describe_networks(record: DecodeRecord) -> str:
    question = record.question
    network = question.networks[0]
    variants = names.listed([name_variant(one) for one in question.networks])
    weights = (
        f"random weights (seed {question.settings.seed})"
        if question.checkpoint is None
        else f"the weights of {question.checkpoint}"
    )
    return (
        f"{variants}: width {network.d_model}, {names.count(network.num_layers, 'layer')}, "
        f"{names.count(network.layers[0].num_heads, 'head')}, a vocabulary of "
        f"{network.vocabulary:,}, {weights}."
    )


def _describe_provenance(record: DecodeRecord) -> list[tuple[str, str]]:
    stream = median_with_interval(record.stream_bytes_per_second)
    ends = (numbers.real(end / 1e9) for end in (stream.value, stream.low, stream.high))
    return [
        ("started", record.started),
        ("ended", record.ended),
        *((fact.name, fact.value) for fact in record.environment),
        ("memory read in a row, GB/s", "{} [{}, {}]".format(*ends)),
        *((f"chosen for {fact.name}", fact.value) for fact in record.kernels),
    ]


def _name_runner(row: SpeedRow | MemoryRow, *, full: bool = True) -> str:
    cache = f": {_name_cache(row.cache)}" if full and row.cache else ""
    return NAMES[row.runner] + cache


def _name_cache(options: CacheOptions) -> str:
    kernel = "" if options.kernel == "layer" else f", {options.kernel}"
    return f"{options.layout}, {format_options(options)}{kernel}"


def _name(row: MemoryRow) -> str:
    return f"{row.case.variant}, {row.cache.layout if row.cache else ''}"


def _speed_tables(record: DecodeRecord) -> Iterator[Table]:
    """Yield one table for each context, batch and dtype."""
    groups: dict[tuple[int, int, str], list[Speed]] = {}
    for speed in read_speeds(record):
        groups.setdefault(speed.row.case.workload, []).append(speed)
    for index, speeds in enumerate(groups.values(), start=1):
        yield _speed_table(record, speeds, f"speed-{index}")


def _speed_table(record: DecodeRecord, speeds: Iterable[Speed], key: str) -> Table:
    speeds = list(speeds)
    settings, case = record.question.settings, speeds[0].row.case
    clock = "elapsed time" if uses_wall_clock(record) else "CPU time"
    prompt = names.count(case.context - settings.new_tokens, "token")
    partly = [one.row for one in speeds if one.row.timed_steps < settings.new_tokens]
    caches = {one.row.cache for one in speeds if one.row.cache}
    tokens = names.count(settings.new_tokens, "new token")
    columns = (
        f"{tokens} after a prompt of {prompt}. Medians, with intervals. TTFT, TPOT and tokens/s: "
        f"elapsed time; ratios: {clock} within a round. GB/s: weights and cache that a step reads "
        "at least, over TPOT; of stream: over the rate of reading a large tensor in a row. What "
        "fits the processor's caches can be read faster."
    )
    notes = [columns]
    if len(caches) == 1:
        notes.insert(0, f"Cache: {_name_cache(*caches)}; formula and allocation at the end.")
    if partly:
        notes.append(
            f"Prefix again: {partly[0].timed_steps} of the {settings.new_tokens} tokens were "
            "timed, the others interpolated."
        )
    rows = [
        {
            "speed": one,
            # Running the prefix again stores nothing.
            "cached": None if one.row.runner == "prefix" else one.row,
            **{runner: one.over_stock.get(runner) for runner in record.question.stock},
        }
        for one in speeds
    ]
    return tabulate(
        key,
        f"Speed: {describe_workload(case)}",
        rows,
        label("variant=speed.row.case.variant"),
        word(
            "runner=speed.row",
            "runner",
            lambda row: plain(row.runner, _name_runner(row, full=len(caches) > 1)),
        ),
        number("first_seconds=speed.first_seconds", "TTFT", _milliseconds, below="ms"),
        number("token_seconds=speed.token_seconds", "TPOT", _milliseconds, below="ms"),
        number("tokens_per_second=speed.tokens_per_second", "tokens/s", _median_cell),
        number(
            "cpu_tokens_per_second=speed.cpu_tokens_per_second.value",
            "CPU",
            numbers.real,
            below="tokens/s",
        ),
        number("cache_formula_bytes=cached.cache_formula_bytes", "formula", _kib, below="KiB"),
        number("cache_bytes=cached.cache_bytes", "allocated", _kib, below="KiB"),
        number("read_bytes_per_second=speed.read_bytes_per_second.value", "GB/s", _gigabytes),
        number("share_of_stream=speed.share_of_stream", "of stream", _rounded_percent),
        number("over_prefix=speed.over_prefix", "x prefix", _median_cell),
        *(
            number(
                f"over_{runner}={runner}", f"x {runner.removeprefix('transformers-')}", _median_cell
            )
            for runner in record.question.stock
        ),
        notes=notes,
    )


def _median_cell(median: Median | None, scale: float = 1.0) -> Cell:
    if median is None:
        return plain(None)
    ends = (numbers.real(end * scale) for end in (median.low, median.high))
    return Cell(
        raw=median.value,
        text=numbers.real(median.value * scale),
        below=(f"[{', '.join(ends)}]",),
    )


def _size(unit: int, size: int | None) -> str:
    return numbers.fixed(None if size is None else size / unit, 1)


def _gigabytes(rate: float | None) -> str:
    return numbers.real(None if rate is None else rate / 1e9)


_milliseconds = partial(_median_cell, scale=1e3)
_rounded_percent = partial(numbers.percent, decimals=0)
_kib, _mib = partial(_size, 2**10), partial(_size, 2**20)


def _speed_data(speed: Speed) -> dict[str, Any]:
    """Return the figures derived from a row of ``speed``, at the same index."""
    return {
        **pick(
            speed,
            "variant=row.case.variant runner=row.runner ttft_seconds=first_seconds "
            "tpot_seconds=token_seconds tokens_per_second cpu_tokens_per_second "
            "read_bytes_per_second share_of_stream over_prefix",
        ),
        "over_stock": speed.over_stock,
    }


def _gap_data(gap: MemoryGap) -> dict[str, Any]:
    return {
        "more": to_dict(gap.more.case) | {"cache": to_dict(gap.more.cache)},
        "less": to_dict(gap.less.case) | {"cache": to_dict(gap.less.cache)},
        **pick(gap, "formula_bytes measured_bytes error"),
    }
