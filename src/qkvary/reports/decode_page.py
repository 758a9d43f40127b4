"""The page of a measurement of decoding: what was found, every figure, two kinds of picture."""

from collections.abc import Mapping
from typing import Any

from qkvary.inference.benchmark.comparisons import (
    POSTER,
    Speed,
    is_long,
    name_place,
    place_of,
    read_speeds,
)
from qkvary.inference.benchmark.findings import find_answers, find_caveats
from qkvary.inference.benchmark.records import DecodeRecord
from qkvary.literature.figures import load_published
from qkvary.reports.decode_charts import memory_chart, speed_chart
from qkvary.reports.decode_tables import (
    QUESTION,
    describe_facts,
    describe_networks,
    describe_provenance,
    gap_table,
    memory_table,
    poster_table,
    speed_tables,
)
from qkvary.reports.documents import render_document
from qkvary.reports.published_quality import Picture


def render_decode(record: DecodeRecord) -> str:
    """Write the page of a measurement; equal records give equal text."""
    return render_document("decode.html.j2", _view(record))


def _view(record: DecodeRecord) -> Mapping[str, Any]:
    return {
        "question": QUESTION,
        "network": describe_networks(record),
        "answers": find_answers(record),
        "caveats": find_caveats(record),
        "facts": describe_facts(record),
        "speed": _show_speed(record),
        "memory": _show_memory(record),
        "gaps": gap_table(record),
        "poster": poster_table(record),
        "source": load_published(POSTER).source,
        "command": record.command,
        "provenance": describe_provenance(record),
    }


def _show_speed(record: DecodeRecord) -> list[Picture]:
    groups: dict[tuple[int, int, str], list[Speed]] = {}
    for speed in read_speeds(record):
        groups.setdefault(place_of(speed.row.case), []).append(speed)
    return [
        Picture(
            caption=f"Tokens per second: {name_place(speeds[0].row.case)}",
            drawing=speed_chart(speeds, f"speed-{number}"),
            table=table,
        )
        for number, (speeds, table) in enumerate(
            zip(groups.values(), speed_tables(record), strict=True), start=1
        )
    ]


def _show_memory(record: DecodeRecord) -> Picture | None:
    # All of them where none of the long context was measured.
    rows = [row for row in record.memory if is_long(record, row)] or list(record.memory)
    if not rows:
        return None
    return Picture(
        caption=f"Memory: {name_place(rows[0].case)}",
        drawing=memory_chart(rows, "memory-chart"),
        table=memory_table(record),
    )
