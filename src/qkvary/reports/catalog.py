"""Finds what makes the files of a plan: by format, a file of this folder.

A file is imported only when its format is asked for: a page needs no matplotlib.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from qkvary.planning.plans import Plan
from qkvary.storage.packages import require

PlanFormat = Literal["html", "svg", "png", "pdf"]
PLAN_FORMATS: tuple[PlanFormat, ...] = get_args(PlanFormat)

_MAKERS: Mapping[str, tuple[str, tuple[PlanFormat, ...]]] = {
    "plan_page": ("jinja2", ("html",)),
    "plan_figures": ("matplotlib", ("svg", "png", "pdf")),
}
"""Maps each file to the package that it needs and the formats that its ``plan_files`` makes."""


def make_plan_files(plan: Plan, formats: Sequence[PlanFormat]) -> dict[str, bytes]:
    """Return the files of a plan by their names, the page first.

    Args:
        plan: What was asked, and the answer.
        formats: Any of ``PLAN_FORMATS``.

    Raises:
        UsageError: if what a format needs is not installed.
        ValueError: for a format that there is not.
    """
    unknown = [name for name in formats if name not in PLAN_FORMATS]
    if unknown:
        raise ValueError(f"expected formats out of {', '.join(PLAN_FORMATS)}, got {unknown[0]!r}")
    files: dict[str, bytes] = {}
    for maker, (package, made) in _MAKERS.items():
        wanted = [name for name in made if name in formats]
        if wanted:
            require(package)
            files |= importlib.import_module(f"{__package__}.{maker}").plan_files(plan, wanted)
    return files
