"""Writes a measurement of decoding: the record, a page, a README, each file whole or not at all."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from qkvary.inference.benchmark.records import DecodeRecord, to_json
from qkvary.reports.catalog import load_decode_page
from qkvary.reports.decode_readme import write_readme
from qkvary.storage.durable import atomic_write_file, make_directory, writing
from qkvary.storage.errors import UsageError

RECORD_NAME, PAGE_NAME, README_NAME = "record.json", "report.html", "README.md"


def _page(record: DecodeRecord) -> bytes:
    return load_decode_page()(record).encode()


def _readme(record: DecodeRecord) -> bytes:
    return write_readme(record, (PAGE_NAME, RECORD_NAME)).encode()


_MAKERS: Mapping[str, Callable[[DecodeRecord], bytes]] = {
    ".json": to_json,
    ".html": _page,
    ".md": lambda record: write_readme(record).encode(),
}


def write_decode(record: DecodeRecord, target: Path) -> tuple[Path, ...]:
    """Write a measurement.

    Args:
        record: What was measured.
        target: A file that ends in .json, .html or .md, or the folder of all three.

    Returns:
        The files. Equal arguments give equal bytes.

    Raises:
        UsageError: for a file with another ending, or if what a page needs is not installed.
        ResourceError: if the disk is full or not writable; what stood there before still does.
    """
    check_target(target)
    if target.suffix in _MAKERS:
        makers = {target: _MAKERS[target.suffix]}
    else:
        # The record first: whatever stops the others, it can be read again.
        makers = {
            target / RECORD_NAME: to_json,
            target / README_NAME: _readme,
            target / PAGE_NAME: _page,
        }
    for path, make in makers.items():
        make_directory(path.absolute().parent)
        atomic_write_file(path, make(record))
    return tuple(makers)


def check_target(target: Path) -> None:
    """Refuse what could not be written, before anything is measured for it.

    Raises:
        UsageError: for an ending that there is no file of, a place inside a file, or if what a page
            needs is not installed.
        ResourceError: if the place cannot be written.
    """
    if target.suffix and target.suffix not in _MAKERS and not target.is_dir():
        raise UsageError(
            f"expected --out with a folder, or a file that ends in {', '.join(_MAKERS)}, got "
            f"{target}"
        )
    if target.suffix not in _MAKERS:
        check_folder(target, "--out")
    elif target.is_dir():
        raise UsageError(f"expected --out with a file, got the folder {target}")
    else:
        check_folder(target.parent, "--out")
    if target.suffix not in (".json", ".md"):
        load_decode_page()


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
