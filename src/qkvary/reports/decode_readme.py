"""A measurement of decoding as Markdown: what was typed, where, every table, what follows."""

from collections.abc import Iterator

from qkvary.inference.benchmark.comparisons import POSTER, stand_beside_poster
from qkvary.inference.benchmark.findings import find_answers, find_caveats
from qkvary.inference.benchmark.records import DecodeRecord
from qkvary.literature.figures import load_published
from qkvary.reports.decode_tables import (
    QUESTION,
    all_tables,
    describe_networks,
    describe_provenance,
)
from qkvary.reports.tables import table_markdown
from qkvary.text import names


def write_readme(record: DecodeRecord, others: tuple[str, ...] = ()) -> str:
    """Write the README of a measurement; equal records give equal text.

    Args:
        record: What was measured.
        others: Files beside it, by their names.
    """
    return "\n".join(_lines(record, others))


def _lines(record: DecodeRecord, others: tuple[str, ...]) -> Iterator[str]:
    yield "# Decoding: memory and speed"
    yield ""
    yield names.markdown(QUESTION)
    yield ""
    yield names.markdown(describe_networks(record))
    yield ""
    yield "```sh"
    yield names.clean(record.command)
    yield "```"
    yield ""
    if others:
        links = names.listed([f"[{name}]({name})" for name in others])
        yield f"This text, like {links}, is written by that command."
        yield ""
    yield "## What was found"
    yield ""
    yield from (f"- {names.markdown(sentence)}" for sentence in find_answers(record))
    yield ""
    yield "## Before you believe it"
    yield ""
    yield from (f"- {names.markdown(sentence)}" for sentence in find_caveats(record))
    yield ""
    yield "## Every figure"
    yield ""
    yield from map(table_markdown, all_tables(record))
    if stand_beside_poster(record):
        yield f"Poster: {names.markdown(load_published(POSTER).source)}."
        yield ""
    yield "## Where"
    yield ""
    yield "| what | value |"
    yield "| --- | --- |"
    for name, value in describe_provenance(record):
        yield f"| {names.markdown(name)} | {names.markdown(value)} |"
    yield ""
