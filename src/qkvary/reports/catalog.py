"""The modules that make pages and pictures, imported only when a format asks for them.

So that what is on the screen needs neither the page's environment nor matplotlib.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Literal, get_args

from qkvary.inference.benchmark.records import DecodeRecord
from qkvary.planning.plans import Plan
from qkvary.storage.errors import UsageError

PlanFormat = Literal["html", "svg", "png", "pdf"]
PLAN_FORMATS: tuple[PlanFormat, ...] = get_args(PlanFormat)

_MAKERS: Mapping[PlanFormat, str] = {
    "html": "plan_page",
    "svg": "plan_figures",
    "png": "plan_figures",
    "pdf": "plan_figures",
}
"""By format the file of this folder whose ``plan_files`` makes it."""


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
    for maker in dict.fromkeys(_MAKERS.values()):
        wanted: list[PlanFormat] = [
            name for name in PLAN_FORMATS if _MAKERS[name] == maker and name in formats
        ]
        if wanted:
            files |= _load(maker, wanted)(plan, wanted)
    return files


def load_decode_page() -> Callable[[DecodeRecord], str]:
    """``decode_page.render_decode``.

    Raises:
        UsageError: if what a page needs is not installed.
    """
    return _import("decode_page", "a page").render_decode


def _load(
    maker: str, wanted: Sequence[PlanFormat]
) -> Callable[[Plan, Sequence[PlanFormat]], dict[str, bytes]]:
    hint = "; --format html needs no matplotlib" if maker == "plan_figures" else ""
    return _import(maker, f"{', '.join(wanted)} files", hint).plan_files


def _import(module: str, what: str, hint: str = "") -> ModuleType:
    """A module of this folder.

    Raises:
        UsageError: if what it imports is not installed.
    """
    try:
        return importlib.import_module(f"{__package__}.{module}")
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing == "qkvary":
            raise
        raise UsageError(
            f"expected {missing} for {what}, got an installation without it: "
            f"pip install 'qkvary[train]' brings it{hint if missing == 'matplotlib' else ''}"
        ) from error
