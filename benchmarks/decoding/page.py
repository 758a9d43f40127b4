"""The tables of a measurement of decoding, equal in terminal, page and README."""

from collections.abc import Iterable, Iterator
from functools import partial

from qkvary.arch.caches import CacheOptions
from qkvary.costs.formats import format_options
from qkvary.inference.benchmark.comparisons import (
    PublishedComparison,
    Speed,
    compare_memory,
    compare_with_poster,
    describe_workload,
    read_speeds,
    uses_wall_clock,
    workload_of,
)
from qkvary.inference.benchmark.medians import Median, median_with_interval
from qkvary.inference.benchmark.networks import name_variant
from qkvary.inference.benchmark.records import DecodeRecord, MemoryRow, Runner, SpeedRow
from qkvary.reports.tables import Cell, Raw, Table, label, named, number, plain, tabulate, word
from qkvary.text import names, numbers, units

NAMES: dict[Runner, str] = {
    "cache": "cache",
    "prefix": "prefix again",
    "transformers": "transformers",
    "transformers-static": "its static cache",
}
"""The titles of the runners."""


def speed_tables(record: DecodeRecord) -> tuple[Table, ...]:
    """Return one table for each context, batch and dtype."""
    speeds = read_speeds(record)
    places = dict.fromkeys(workload_of(speed.row.case) for speed in speeds)
    return tuple(
        _speed_table(record, [one for one in speeds if workload_of(one.row.case) == place], index)
        for index, place in enumerate(places, start=1)
    )


def memory_table(record: DecodeRecord) -> Table:
    """Return the table of peak memory, one answer per row."""
    source = "; ".join(sorted({row.source for row in record.memory}))
    note = (
        f"Peak ({source}): what the answer added to the process that had loaded the "
        "network and decoded a few tokens; beside it: the peak above the cache; in all: "
        "peak and weights. Prompts passed in chunks of "
        f"{record.question.settings.memory_chunk} tokens, in transformers too. Networks of "
        "one size in transformers were measured once."
    )
    return tabulate(
        "memory",
        "Peak memory of one answer, each in a fresh process",
        record.memory,
        label("variant=case.variant"),
        word(
            "runner=", "answers", lambda row: plain(row.runner, name_runner(row.runner, row.cache))
        ),
        number("context=case.context", write=numbers.whole),
        number("batch=case.batch"),
        word("dtype=case.dtype"),
        number("weight_bytes", "weights", _mib, below="MiB"),
        number("cache_formula_bytes", "formula", _mib, below="MiB"),
        number("cache_bytes", "allocated", _mib, below="MiB"),
        number("answer_bytes", "peak", _mib, below="MiB"),
        number(
            "momentary_bytes=",
            "beside it",
            lambda row: _mib(row.answer_bytes - row.cache_bytes),
            below="MiB",
        ),
        number("total_bytes", "in all", _mib, below="MiB"),
        notes=[note],
    )


def gap_table(record: DecodeRecord) -> Table:
    """Return the measured differences of peaks with those of the formula."""
    note = (
        "Formula: the cost model's difference of the caches. Weights are not in it: the "
        "peaks are those of answers alone."
    )
    return tabulate(
        "gaps",
        "What keeping less lowers the peak by",
        compare_memory(record),
        word("more", "from", _cached),
        word("less", "to", _cached),
        number("context=more.case.context", write=numbers.whole),
        number("formula_bytes", "formula", _mib, below="MiB"),
        number("measured_bytes", "measured", _mib, below="MiB"),
        number(
            "error", "off by", lambda error: numbers.fixed(100 * error, 2, sign=True), below="%"
        ),
        notes=[note],
    )


def _cached(row: MemoryRow) -> Cell:
    return named(f"{row.case.variant}, {row.cache.layout if row.cache else ''}")


def poster_table(record: DecodeRecord) -> Table | None:
    """Return the published changes of Q-K=V against QKV with ours, if both were measured."""
    found = compare_with_poster(record)
    if not found:
        return None
    note = (
        "Peak memory: weights and answer, without the program. The poster's batch and "
        "context are not known, and its code has no cache. Cost model: all weights and the "
        "cache in bf16, or the bytes that a step reads; what is only needed for a moment "
        "is in neither."
    )
    return tabulate(
        "poster",
        "Q-K=V against QKV: the poster's measurement and ours",
        (row for one in found for row in _poster_rows(one)),
        label("quantity", "change of"),
        word("where"),
        number("percent", "%"),
        notes=[note],
    )


def describe_networks(record: DecodeRecord) -> str:
    """Return a sentence about the networks."""
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


def describe_facts(record: DecodeRecord) -> list[tuple[str, str]]:
    """Return the facts of the question, in a few words each."""
    question, settings = record.question, record.question.settings
    stream = median_with_interval(record.stream_bytes_per_second)
    return [
        ("contexts", ", ".join(units.tokens(one) for one in question.contexts)),
        ("answers at once", ", ".join(map(str, question.batches))),
        ("number formats", ", ".join(question.dtypes)),
        ("new tokens", numbers.whole(settings.new_tokens)),
        ("rounds", numbers.whole(settings.rounds)),
        ("threads", numbers.whole(settings.threads)),
        ("device", settings.device),
        ("stream, GB/s", numbers.real(stream.value / 1e9)),
    ]


def describe_provenance(record: DecodeRecord) -> list[tuple[str, str]]:
    """Return the machine and time of the measurement, and the kernels that were chosen."""
    stream = write_median(median_with_interval(record.stream_bytes_per_second), scale=1e-9)
    return [
        ("started", record.started),
        ("ended", record.ended),
        *((fact.name, fact.value) for fact in record.environment),
        ("memory read in a row, GB/s", stream),
        *((f"chosen for {fact.name}", fact.value) for fact in record.kernels),
    ]


def write_median(median: Median, scale: float) -> str:
    """Write a median with its interval on one line."""
    low, high = (numbers.real(end * scale) for end in (median.low, median.high))
    return f"{numbers.real(median.value * scale)} [{low}, {high}]"


def name_cache(options: CacheOptions) -> str:
    """Return the name of a cache, in words."""
    kernel = "" if options.kernel == "layer" else f", {options.kernel}"
    return f"{options.layout}, {format_options(options)}{kernel}"


def name_runner(runner: Runner, options: CacheOptions | None) -> str:
    """Return the name of a runner with its cache, in words."""
    return NAMES[runner] if options is None else f"{NAMES[runner]}: {name_cache(options)}"


def only_cache(rows: Iterable[SpeedRow | MemoryRow]) -> CacheOptions | None:
    """Return the cache of all rows, or ``None`` if they differ."""
    found = {row.cache for row in rows if row.cache is not None}
    return found.pop() if len(found) == 1 else None


def _speed_table(record: DecodeRecord, speeds: list[Speed], place: int) -> Table:
    clock = "the clock on the wall" if uses_wall_clock(record) else "the time of the processor"
    settings, case = record.question.settings, speeds[0].row.case
    prompt = names.count(case.context - settings.new_tokens, "token")
    partly = [one.row for one in speeds if one.row.timed_steps < settings.new_tokens]
    notes = [
        (
            f"{names.count(settings.new_tokens, 'new token')} behind a prompt of {prompt}. Medians "
            f"of {names.count(settings.rounds, 'round')} in which all take turns, with intervals "
            + ("that hold at least 95 %." if settings.rounds > 5 else "from least to most.")
            + " TTFT, TPOT and tokens/s go by the clock on the wall, ratios within a round by "
            f"{clock}. CPU tokens/s: by the time of the processor."
        ),
        (
            "GB/s: weights and cache that a step reads at least, over TPOT; of stream: beside "
            "reading a large tensor in a row in the same rounds. What fits the caches of the "
            "processor can be read faster than memory."
        ),
    ]
    shared = only_cache(one.row for one in speeds)
    if shared is not None:
        notes.insert(0, f"Cache: {name_cache(shared)}; formula and allocation at the end.")
    if partly:
        notes.append(
            f"Prefix again: {partly[0].timed_steps} of the {settings.new_tokens} tokens were "
            "timed, the others interpolated."
        )

    def name_row(row: SpeedRow) -> Cell:
        return plain(row.runner, name_runner(row.runner, None if shared else row.cache))

    rows = [
        {
            "speed": one,
            # Running the prefix again keeps nothing.
            "cached": None if one.row.runner == "prefix" else one.row,
            **dict(one.over_stock),
        }
        for one in speeds
    ]
    return tabulate(
        f"speed-{place}",
        f"Speed: {describe_workload(case)}",
        rows,
        label("variant=speed.row.case.variant"),
        word("runner=speed.row", "answers", name_row),
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


_milliseconds = partial(_median_cell, scale=1e3)


def _size(unit: int, size: int | None) -> str:
    return numbers.fixed(None if size is None else size / unit, 1)


def _gigabytes(rate: float | None) -> str:
    return numbers.real(None if rate is None else rate / 1e9)


_rounded_percent = partial(numbers.percent, decimals=0)
_kib, _mib = partial(_size, 2**10), partial(_size, 2**20)


def _poster_rows(comparison: PublishedComparison) -> Iterator[dict[str, Raw | Cell]]:
    signed = partial(numbers.fixed, decimals=1, sign=True)
    low, high = comparison.published
    found = [("the poster: 1.2B, bfloat16, A100", plain(low, f"{signed(low)} to {signed(high)}"))]
    found += [
        (f"the cost model: 1.2B, bf16, {where}", plain(value, signed(value)))
        for where, value in comparison.model
    ]
    for where, change in comparison.here:
        ends = numbers.interval(change.low, change.high, 1, sign=True)
        below = () if change.low == change.high else (ends,)
        cell = Cell(raw=change.value, text=signed(change.value), below=below)
        found.append((f"measured here: {where}", cell))
    for where, cell in found:
        yield {"quantity": comparison.quantity, "where": where, "percent": cell}
