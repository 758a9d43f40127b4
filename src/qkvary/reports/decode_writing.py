"""Writes a measurement of decoding: the record, a page, a README, each file whole or not at all."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from qkvary.inference.benchmark.records import DecodeRecord, to_json
from qkvary.reports.decode_readme import write_readme
from qkvary.storage.durable import atomic_write_file, make_directory, writing
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require

RECORD_NAME, PAGE_NAME, README_NAME = "record.json", "report.html", "README.md"


ENDINGS = (".json", ".html", ".md")
"""The endings of paths that name one file to write."""


def write_decode(
    record: DecodeRecord, target: Path, page: Callable[[DecodeRecord], str]
) -> tuple[Path, ...]:
    """Write a measurement.

    Args:
        record: What was measured.
        target: A file that ends in .json, .html or .md, or the folder of all three.
        page: Renders the page, as ``decode_page.render_decode`` does.

    Returns:
        The files. Equal arguments give equal bytes.

    Raises:
        UsageError: for a file with another ending, or if the page needs what is not installed.
        ResourceError: if the disk is full or not writable; what stood there before still does.
    """
    check_target(target)
    # The record first: whatever stops the others, it can be read again.
    paths = (
        (target,)
        if target.suffix in ENDINGS
        else tuple(target / name for name in (RECORD_NAME, README_NAME, PAGE_NAME))
    )
    for path in paths:
        match path.suffix:
            case ".json":
                data = to_json(record)
            case ".html":
                data = page(record).encode()
            case _:
                others = () if path == target else (PAGE_NAME, RECORD_NAME)
                data = write_readme(record, others).encode()
        make_directory(path.absolute().parent)
        atomic_write_file(path, data)
    return paths


def check_target(target: Path) -> None:
    """Refuse what could not be written, before anything is measured for it.

    Raises:
        UsageError: for an ending that there is no file of, a place inside a file, or if what a page
            needs is not installed.
        ResourceError: if the place cannot be written.
    """
    if target.suffix and target.suffix not in ENDINGS and not target.is_dir():
        raise UsageError(
            f"expected --out with a folder, or a file that ends in {', '.join(ENDINGS)}, got "
            f"{target}"
        )
    if target.suffix not in ENDINGS:
        check_folder(target, "--out")
    elif target.is_dir():
        raise UsageError(f"expected --out with a file, got the folder {target}")
    else:
        check_folder(target.parent, "--out")
    if target.suffix not in (".json", ".md"):
        require("jinja2")


def check_folder(folder: Path, option: str) -> None:
    """Refuse a folder that could not be written, or made; it is not made yet.

    Args:
        folder: Where files will be.
        option: Of the command, for the message.

    Raises:
        UsageError: if it is a file, or inside of one.
        ResourceError: if it cannot be written.
    """
    with writing(folder):
        there = next(
            place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()
        )
        if there.is_dir():
            with tempfile.TemporaryFile(dir=there):
                return
    raise UsageError(f"expected {option} with a folder, or a file in one, got {there}, a file")
