"""The report of a measurement of decoding: speed, memory, and the poster's figures beside ours."""

from functools import partial
from typing import Any

from qkvary.arch.canonical import to_dict
from qkvary.arch.published_quality import DECODING_SOURCE
from qkvary.inference.benchmark.comparisons import (
    MemoryGap,
    Speed,
    compare_memory,
    compare_with_poster,
    describe_workload,
    is_long,
    read_speeds,
    workload_of,
)
from qkvary.inference.benchmark.findings import find_answers, find_caveats
from qkvary.inference.benchmark.records import DecodeRecord, to_json
from qkvary.reports.decode_charts import memory_chart, speed_chart
from qkvary.reports.decode_tables import (
    describe_facts,
    describe_networks,
    describe_provenance,
    gap_table,
    memory_table,
    poster_table,
    speed_tables,
)
from qkvary.reports.report import Block, Chart, Code, Group, Pairs, Report, Section
from qkvary.reports.tables import pick

QUESTION = (
    "What do memory and speed of decoding gain by a cache that keeps what the sharing needs, "
    "and how do they compare with running the prefix again and with transformers?"
)


def decode_report(record: DecodeRecord) -> Report:
    """Return the report of a measurement of decoding."""
    sections = (_speed(record), _memory(record), _poster(record), _provenance(record))
    return Report(
        subject="measurement: decoding",
        question=QUESTION,
        lead=describe_networks(record),
        answer=find_answers(record),
        caveats=find_caveats(record),
        facts=tuple(describe_facts(record)),
        sections=tuple(section for section in sections if section.blocks),
        data=_data(record),
        record=to_json(record),
    )


def _speed(record: DecodeRecord) -> Section:
    groups: dict[tuple[int, int, str], list[Speed]] = {}
    for speed in read_speeds(record):
        groups.setdefault(workload_of(speed.row.case), []).append(speed)
    blocks: list[Block] = []
    for speeds, table in zip(groups.values(), speed_tables(record), strict=True):
        chart = Chart(
            draw=partial(speed_chart, speeds),
            caption=f"Tokens per second: {describe_workload(speeds[0].row.case)}",
            file=table.key,
        )
        blocks += [Group(blocks=(chart,), layout="alone"), table]
    return Section(
        key="speed",
        title="Speed",
        lead="Filled marks: with the cache. Hollow: transformers' generate with the same weights, "
        "its growing cache large, its static one small. Upright lines: running the prefix again "
        "for every token. Whiskers: the interval of the median.",
        blocks=tuple(blocks),
        brief=True,
    )


def _memory(record: DecodeRecord) -> Section:
    # All rows if no long context was measured.
    rows = [row for row in record.memory if is_long(record, row)] or list(record.memory)
    blocks: list[Block] = []
    if rows:
        chart = Chart(
            draw=partial(memory_chart, rows),
            caption=f"Memory: {describe_workload(rows[0].case)}",
            file="memory",
        )
        charts = Group(blocks=(chart,), layout="alone")
        blocks += [charts, memory_table(record), gap_table(record)]
    return Section(
        key="memory",
        title="Memory",
        lead="Each answer in a fresh process. Boxes, from the left: weights, cache, and the "
        "rest of the peak.",
        blocks=tuple(blocks),
        brief=True,
    )


def _poster(record: DecodeRecord) -> Section:
    table = poster_table(record)
    return Section(
        key="poster",
        title="The poster's figures",
        lead=f"Poster: {DECODING_SOURCE}.",
        blocks=() if table is None else (table,),
        brief=True,
    )


def _provenance(record: DecodeRecord) -> Section:
    return Section(
        key="provenance",
        title="How it was measured",
        blocks=(Code((record.command,)), Pairs(tuple(describe_provenance(record)))),
    )


def _data(record: DecodeRecord) -> dict[str, Any]:
    return {
        **to_dict(record),
        "answers": find_answers(record),
        "caveats": find_caveats(record),
        "speeds": [_speed_data(speed) for speed in read_speeds(record)],
        "gaps": [_gap_data(gap) for gap in compare_memory(record)],
        "poster": compare_with_poster(record),
    }


def _speed_data(speed: Speed) -> dict[str, Any]:
    """Return the figures derived from a row of ``speed``, at the same index."""
    return {
        **pick(
            speed,
            "variant=row.case.variant runner=row.runner ttft_seconds=first_seconds "
            "tpot_seconds=token_seconds tokens_per_second cpu_tokens_per_second "
            "read_bytes_per_second share_of_stream over_prefix",
        ),
        "over_stock": dict(speed.over_stock),
    }


def _gap_data(gap: MemoryGap) -> dict[str, Any]:
    return {
        "more": to_dict(gap.more.case) | {"cache": to_dict(gap.more.cache)},
        "less": to_dict(gap.less.case) | {"cache": to_dict(gap.less.cache)},
        **pick(gap, "formula_bytes measured_bytes error"),
    }
