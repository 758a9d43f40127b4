"""Writes the page and the pictures of a plan, each file whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

from qkvary.planning.plans import Plan
from qkvary.reports.catalog import PLAN_FORMATS, PlanFormat, make_plan_files
from qkvary.storage.durable import atomic_write_file, make_directory


def write_plan(
    plan: Plan, out_dir: Path, formats: Sequence[PlanFormat] = PLAN_FORMATS
) -> tuple[Path, ...]:
    """Write the files of a plan.

    Everything is made before anything is written, so that a library that is missing leaves no half
    of a report.

    Args:
        plan: What was asked, and the answer.
        out_dir: Where the files go: ``plan.html`` and the pictures.
        formats: Which of ``PLAN_FORMATS`` to write.

    Returns:
        The files, the page first. Equal arguments give equal bytes.

    Raises:
        UsageError: if what a format needs is not installed.
        ResourceError: if the disk is full or not writable; what stood there before still does.
    """
    files = make_plan_files(plan, formats)
    for name, data in files.items():
        make_directory(out_dir)
        atomic_write_file(out_dir / name, data)
    return tuple(out_dir / name for name in files)
