"""The tables of a measurement of decoding, equal in terminal, page and README."""

from collections.abc import Iterable, Iterator

from qkvary.arch.caches import CacheOptions
from qkvary.costs.formats import format_options
from qkvary.inference.benchmark.comparisons import (
    MemoryGap,
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
from qkvary.reports.tables import Cell, Column, Table, named, plain
from qkvary.text import names, numbers, units

NAMES: dict[Runner, str] = {
    "cache": "cache",
    "prefix": "prefix again",
    "transformers": "transformers",
    "transformers-static": "its static cache",
}
"""The titles of the runners."""
_MIB = 2**20


def speed_tables(record: DecodeRecord) -> tuple[Table, ...]:
    """Return one table for each context, batch and dtype."""
    speeds = read_speeds(record)
    places = dict.fromkeys(workload_of(speed.row.case) for speed in speeds)
    return tuple(
        _speed_table(record, [one for one in speeds if workload_of(one.row.case) == place], number)
        for number, place in enumerate(places, start=1)
    )


def memory_table(record: DecodeRecord) -> Table:
    """Return the table of peak memory, one answer per row."""
    source = "; ".join(sorted({row.source for row in record.memory}))
    return Table(
        key="memory",
        title="Peak memory of one answer, each in a fresh process",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key="runner", title="answers", numeric=False),
            Column(key="context", title="context"),
            Column(key="batch", title="batch"),
            Column(key="dtype", title="dtype", numeric=False),
            Column(key="weight_bytes", title="weights", below="MiB"),
            Column(key="cache_formula_bytes", title="formula", below="MiB"),
            Column(key="cache_bytes", title="allocated", below="MiB"),
            Column(key="answer_bytes", title="peak", below="MiB"),
            Column(key="momentary_bytes", title="beside it", below="MiB"),
            Column(key="total_bytes", title="in all", below="MiB"),
        ),
        rows=tuple(map(_memory_row, record.memory)),
        notes=(
            (
                f"Peak ({source}): what the answer added to the process that had loaded the "
                "network and decoded a few tokens; beside it: the peak above the cache; in all: "
                "peak and weights. Prompts passed in chunks of "
                f"{record.question.settings.memory_chunk} tokens, in transformers too. Networks of "
                "one size in transformers were measured once."
            ),
        ),
    )


def gap_table(record: DecodeRecord) -> Table:
    """Return the measured differences of peaks with those of the formula."""
    return Table(
        key="gaps",
        title="What keeping less lowers the peak by",
        columns=(
            Column(key="more", title="from", numeric=False),
            Column(key="less", title="to", numeric=False),
            Column(key="context", title="context"),
            Column(key="formula_bytes", title="formula", below="MiB"),
            Column(key="measured_bytes", title="measured", below="MiB"),
            Column(key="error", title="off by", below="%"),
        ),
        rows=tuple(map(_gap_row, compare_memory(record))),
        notes=(
            (
                "Formula: the cost model's difference of the caches. Weights are not in it: the "
                "peaks are those of answers alone."
            ),
        ),
    )


def poster_table(record: DecodeRecord) -> Table | None:
    """Return the published changes of Q-K=V against QKV with ours, if both were measured."""
    found = compare_with_poster(record)
    if not found:
        return None
    return Table(
        key="poster",
        title="Q-K=V against QKV: the poster's measurement and ours",
        columns=(
            Column(key="quantity", title="change of", numeric=False),
            Column(key="where", title="where", numeric=False),
            Column(key="percent", title="%"),
        ),
        rows=tuple(row for one in found for row in _poster_rows(one)),
        notes=(
            (
                "Peak memory: weights and answer, without the program. The poster's batch and "
                "context are not known, and its code has no cache. Cost model: all weights and the "
                "cache in bf16, or the bytes that a step reads; what is only needed for a moment "
                "is in neither."
            ),
        ),
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


def write_median(median: Median, digits: int = 3, scale: float = 1.0) -> str:
    """Write a median with its interval on one line."""
    low, high = (numbers.real(end * scale, digits) for end in (median.low, median.high))
    return f"{numbers.real(median.value * scale, digits)} [{low}, {high}]"


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


def _speed_table(record: DecodeRecord, speeds: list[Speed], number: int) -> Table:
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
    return Table(
        key=f"speed-{number}",
        title=f"Speed: {describe_workload(case)}",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key="runner", title="answers", numeric=False),
            Column(key="first_seconds", title="TTFT", below="ms"),
            Column(key="token_seconds", title="TPOT", below="ms"),
            Column(key="tokens_per_second", title="tokens/s"),
            Column(key="cpu_tokens_per_second", title="CPU", below="tokens/s"),
            Column(key="cache_formula_bytes", title="formula", below="KiB"),
            Column(key="cache_bytes", title="allocated", below="KiB"),
            Column(key="read_bytes_per_second", title="GB/s"),
            Column(key="share_of_stream", title="of stream"),
            Column(key="over_prefix", title="x prefix"),
            *(
                Column(key=f"over_{runner}", title="x " + runner.removeprefix("transformers-"))
                for runner in record.question.stock
            ),
        ),
        rows=tuple(_speed_row(record, speed, named_apart=shared is None) for speed in speeds),
        notes=tuple(notes),
    )


def _speed_row(record: DecodeRecord, speed: Speed, *, named_apart: bool) -> tuple[Cell, ...]:
    row, over = speed.row, dict(speed.over_stock)
    read = speed.read_bytes_per_second
    runner = name_runner(row.runner, row.cache if named_apart else None)
    return (
        named(row.case.variant),
        plain(row.runner, runner),
        _median_cell(speed.first_seconds, 1e3),
        _median_cell(speed.token_seconds, 1e3),
        _median_cell(speed.tokens_per_second),
        plain(speed.cpu_tokens_per_second.value, numbers.real(speed.cpu_tokens_per_second.value)),
        _size_cell(row.cache_formula_bytes if row.runner != "prefix" else None, 1024),
        _size_cell(row.cache_bytes if row.runner != "prefix" else None, 1024),
        plain(
            None if read is None else read.value,
            None if read is None else numbers.real(read.value / 1e9),
        ),
        plain(
            speed.share_of_stream,
            None if speed.share_of_stream is None else numbers.percent(speed.share_of_stream, 0),
        ),
        _median_cell(speed.over_prefix),
        *(_median_cell(over.get(runner)) for runner in record.question.stock),
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


def _size_cell(size: int | None, unit: int) -> Cell:
    return plain(size, None if size is None else numbers.fixed(size / unit, 1))


def _memory_row(row: MemoryRow) -> tuple[Cell, ...]:
    case = row.case
    return (
        named(case.variant),
        plain(row.runner, name_runner(row.runner, row.cache)),
        plain(case.context, numbers.whole(case.context)),
        plain(case.batch),
        plain(case.dtype),
        _size_cell(row.weight_bytes, _MIB),
        _size_cell(row.cache_formula_bytes, _MIB),
        _size_cell(row.cache_bytes, _MIB),
        _size_cell(row.answer_bytes, _MIB),
        _size_cell(row.answer_bytes - row.cache_bytes, _MIB),
        _size_cell(row.total_bytes, _MIB),
    )


def _gap_row(gap: MemoryGap) -> tuple[Cell, ...]:
    ends = [f"{row.case.variant}, {row.cache.layout}" for row in (gap.more, gap.less) if row.cache]
    return (
        named(ends[0]),
        named(ends[1]),
        plain(gap.more.case.context, numbers.whole(gap.more.case.context)),
        _size_cell(gap.formula_bytes, _MIB),
        _size_cell(gap.measured_bytes, _MIB),
        plain(gap.error, numbers.fixed(100 * gap.error, 2, sign=True)),
    )


def _poster_rows(comparison: PublishedComparison) -> Iterator[tuple[Cell, ...]]:
    low, high = comparison.published
    yield (
        named(comparison.quantity),
        plain("the poster: 1.2B, bfloat16, A100"),
        plain(low, f"{numbers.fixed(low, 1, sign=True)} to {numbers.fixed(high, 1, sign=True)}"),
    )
    for where, value in comparison.model:
        yield (
            named(comparison.quantity),
            plain(f"the cost model: 1.2B, bf16, {where}"),
            plain(value, numbers.fixed(value, 1, sign=True)),
        )
    for where, change in comparison.here:
        alone = change.low == change.high
        yield (
            named(comparison.quantity),
            plain(f"measured here: {where}"),
            Cell(
                raw=change.value,
                text=numbers.fixed(change.value, 1, sign=True),
                below=() if alone else (numbers.interval(change.low, change.high, 1, sign=True),),
            ),
        )
