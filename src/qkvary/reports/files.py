"""Writes the files of a report, each atomically."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from qkvary.reports.figures import FigureFormat, figure_files
from qkvary.reports.json_data import to_json
from qkvary.reports.markdown import render_markdown
from qkvary.reports.page import render_page
from qkvary.reports.report import DEFAULT_FORMATS, FORMATS, Report, ReportFormat
from qkvary.reports.tables import table_csv
from qkvary.storage.durable import check_folder, make_directory, write_output
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import StrPath, read_path

ENDINGS: dict[str, ReportFormat] = {".json": "json", ".html": "html", ".md": "markdown"}
"""The format of a single file, by its suffix."""


def write_report(
    report: Report, target: StrPath, formats: Sequence[ReportFormat] | None = None
) -> tuple[Path, ...]:
    """Write a report.

    All files are made before any is written, so a missing package leaves no incomplete report.

    Args:
        report: The report.
        target: A folder or a file. A folder gets the page and the folders ``tables`` and
            ``figures``. A file gets the format of its suffix, which must be in ``ENDINGS``.
        formats: Any of ``FORMATS``; ``DEFAULT_FORMATS`` by default.

    Returns:
        The written files, JSON first, then the page. Equal reports give equal bytes.

    Raises:
        ValueError: for an unknown format.
        UsageError: if a package for a format is not installed.
        ResourceError: if the disk is full or not writable; earlier files are kept.
    """
    target = read_path(target, "a folder or file for the report")
    single = ENDINGS.get(target.suffix)
    wanted = formats or DEFAULT_FORMATS
    made = make_files(report, [single] if single else wanted)
    files = {(target if single else target / name): data for name, data in made.items()}
    for path, data in files.items():
        make_directory(path.absolute().parent)
        write_output(path, data)
    return tuple(files)


def make_files(report: Report, formats: Sequence[ReportFormat]) -> dict[str, bytes]:
    """Return the files of a report by their relative paths; see :func:`write_report`."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ValueError(f"expected formats from {', '.join(FORMATS)}, got {unknown[0]!r}")
    files: dict[str, bytes] = {}
    if "json" in formats:
        name = "record.json" if report.record else f"{report.stem}.json"
        files[name] = report.record or to_json(report.data).encode()
    if "html" in formats:
        files[f"{report.stem}.html"] = render_page(report).encode()
    if "markdown" in formats:
        text = render_markdown(report, "figures" if "svg" in formats else "")
        files[f"{report.stem}.md"] = text.encode()
    if "csv" in formats:
        for table in report.datasets:
            files[f"tables/{table.key}.csv"] = table_csv(table).encode("utf-8", "replace")
    drawn: list[FigureFormat] = [kind for kind in get_args(FigureFormat) if kind in formats]
    for name, data in figure_files(report, drawn).items():
        files[f"figures/{name}"] = data
    return files


def check_target(target: Path) -> None:
    """Refuse a target that cannot be written, before a long measurement starts.

    Raises:
        UsageError: if the file extension is unknown, or if the target of a file is a folder.
        ResourceError: under the same conditions as ``check_folder``.
    """
    if target.suffix and target.suffix not in ENDINGS and not target.is_dir():
        raise UsageError(
            f"expected --out with a folder, or a file that ends in {', '.join(ENDINGS)}, got "
            f"{target}"
        )
    if target.suffix in ENDINGS and target.is_dir():
        raise UsageError(f"expected --out with a file, got the folder {target}")
    check_folder(target.parent if target.suffix in ENDINGS else target)
