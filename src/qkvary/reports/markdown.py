"""Writes a report as one Markdown document. Equal reports give equal text."""

import re
from collections.abc import Iterator

from qkvary.reports.report import Block, Bullets, Chart, Code, Fold, Group, Pairs, Prose, Report
from qkvary.reports.tables import Table
from qkvary.text import names


def render_markdown(report: Report, folder: str = "") -> str:
    """Return a report as Markdown, with all tables and the main picture.

    A report without a main picture is shown with all its drawings. Drawings are links to SVG files
    in ``folder``, a path relative to the document. If ``folder`` is empty, drawings are left out.
    Sections without content are left out.
    """
    lines = [f"# {names.markdown(report.question)}", ""]
    lines += [f"{names.markdown(report.subject.capitalize())}.", ""]
    if report.lead:
        lines += [names.markdown(report.lead), ""]
    lines += _bullets(report.answer)
    if report.picture:
        lines += _image(report.picture, report.picture.caption, folder)
        folder = ""
    if report.caveats:
        lines += ["## Before you believe it", "", *_bullets(report.caveats)]
    if report.facts:
        lines += list(_block(Pairs(report.facts)))
    for section in report.sections:
        if shown := [line for block in section.blocks for line in _block(block, folder)]:
            lines += [f"## {names.markdown(section.title)}", ""]
            lines += [names.markdown(section.lead), ""] if section.lead else []
            lines += shown
    return "\n".join(lines).encode("utf-8", "replace").decode()


def table_markdown(table: Table) -> str:
    """Return a table in GitHub's Markdown."""
    return "\n".join(_block(table))


def _bullets(items: tuple[str, ...]) -> list[str]:
    return [*(f"- {names.markdown(item)}" for item in items), ""]


def _image(drawn: Chart | Group, words: str, folder: str) -> list[str]:
    if not (folder and drawn.file):
        return []
    return [f"![{names.markdown(words)}]({folder}/{drawn.file}.svg)", ""]


def _block(block: Block, folder: str = "") -> Iterator[str]:
    match block:
        case Table():
            yield from _table(block)
        case Prose():
            yield from (names.markdown(block.text), "")
        case Bullets():
            yield from _bullets(block.items)
        case Code():
            # A fence longer than any run of backticks inside, which would end the block.
            runs = re.findall("`+", "\n".join(block.lines))
            fence = "`" * max(3, 1 + max(map(len, runs), default=0))
            yield from (f"{fence}{block.language}", *map(names.clean, block.lines), fence, "")
        case Pairs():
            yield from ("| what | value |", "| --- | --- |")
            for name, value in block.items:
                yield f"| {names.markdown(name)} | {names.markdown(value)} |"
            yield ""
        case Chart():
            yield from _image(block, block.caption, folder)
            if block.table:
                yield from _table(block.table)
        case Group():
            yield from _group(block, folder)
        case Fold():
            for one in block.blocks:
                yield from _block(one, folder)
        case _:
            # Legends explain the marks of drawings, which Markdown does not show.
            return


def _group(group: Group, folder: str) -> Iterator[str]:
    inner = [line for one in group.blocks for line in _block(one, folder)]
    inner = [*_image(group, group.title, folder), *inner]
    if inner and group.title:
        yield from (f"### {names.markdown(group.title)}", "")
        yield from (names.markdown(group.lead), "") if group.lead else ()
    yield from inner
    if group.notes:
        yield from _bullets(group.notes)


def _table(table: Table) -> Iterator[str]:
    heads = [names.markdown(f"{column.title} {column.below}".strip()) for column in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    yield from (f"### {names.markdown(table.title)}", "")
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join(rules)} |"
    for row in table.rows:
        cells = (names.markdown(" ".join((cell.text, *cell.below)).strip()) for cell in row)
        yield f"| {' | '.join(cells)} |"
    for note in table.notes:
        yield from ("", names.markdown(note))
    yield ""
