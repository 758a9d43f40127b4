"""Writes the report of a study: page, tables and figures, each file whole or not at all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from qkvary.reports.export import csv_files, markdown_report
from qkvary.reports.figure_style import Format
from qkvary.reports.maps import AttentionMaps
from qkvary.reports.page import render_page
from qkvary.reports.paper_figures import figure_files
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.studies.results.summary import Summary

ReportFormat = Literal["html", "csv", "markdown", "svg", "png", "pdf"]

FORMATS: tuple[ReportFormat, ...] = get_args(ReportFormat)
PAGE_NAME = "report.html"


def write_report(
    summary: Summary,
    attention: Sequence[AttentionMaps],
    out_dir: Path,
    formats: Sequence[ReportFormat] = ("html",),
) -> tuple[Path, ...]:
    """Write the report of a study.

    Args:
        summary: What the study found, its learning curves included.
        attention: One example for each setting and variant that has one.
        out_dir: Where the files go: ``report.html``, ``report.md``, ``tables/`` and ``figures/``.
        formats: Which of ``FORMATS`` to write.

    Returns:
        The files, the page first. Equal arguments give equal bytes.

    Raises:
        ValueError: for a format that there is not.
        ResourceError: if the disk is full or not writable; what stood there before still does.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ValueError(f"unknown format {unknown[0]!r}; choices: {', '.join(FORMATS)}")
    files: dict[Path, bytes] = {}
    if "html" in formats:
        files[out_dir / PAGE_NAME] = render_page(summary, attention).encode()
    if "markdown" in formats:
        files[out_dir / "report.md"] = markdown_report(summary, attention).encode()
    if "csv" in formats:
        for name, text in csv_files(summary, attention).items():
            files[out_dir / "tables" / name] = text.encode("utf-8", "replace")
    drawn: list[Format] = [kind for kind in get_args(Format) if kind in formats]
    for name, data in figure_files(summary, attention, drawn).items():
        files[out_dir / "figures" / name] = data
    for path, data in files.items():
        make_directory(path.parent)
        atomic_write_file(path, data)
    return tuple(files)
