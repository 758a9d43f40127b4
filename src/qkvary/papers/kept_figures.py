"""Reads the figures of studies that judge claims from a file. Never imports torch.

The package contains the file ``kept_figures.json`` instead of the tables of studies. The script
``studies/claims/make.py`` copies the figures from the tables in the repository's folder ``studies``
to this file. The module ``kept_tables`` reads the tables.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from qkvary.papers.claim import ByStudy

SCHEMA_VERSION = 1
NAME = "kept_figures.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFigure:
    """A number from a study in this repository, with its interval if it has one."""

    value: float
    low: float | None
    """The lower end of the interval, corrected for all comparisons of the table; None without an
    interval."""
    high: float | None
    detectable: float | None
    """The smallest difference that the study would have detected; None if not known."""
    runs: int
    """Number of runs, or of pairs of runs if ``paired``."""
    paired: bool
    folder: str
    """The study's folder inside the folder of reports, such as ``ours/lm-small``."""
    parameters: tuple[int, int] | None
    """Parameters of the smallest and the largest network; None for a figure without
    networks."""


FindKept = Callable[[ByStudy], KeptFigure | None]
"""Function that returns the stored figure for a judge, or None if there is none."""


def find_packaged(judge: ByStudy) -> KeptFigure | None:
    """Return the figure for a judge from the package's ``kept_figures.json``, or None."""
    return _packaged().get(judge.key)


@functools.cache
def _packaged() -> Mapping[str, KeptFigure]:
    text = (resources.files("qkvary.papers") / NAME).read_text("utf-8")
    return decode_kept(json.loads(text))


def encode_kept(figures: Mapping[str, KeptFigure]) -> str:
    """Return the contents of ``kept_figures.json``, one line per figure."""
    lines = [
        f"  {json.dumps(key, ensure_ascii=False)}: {json.dumps(asdict(one))}"
        for key, one in sorted(figures.items())
    ]
    body = ",\n".join(lines)
    return f'{{\n "schema_version": {SCHEMA_VERSION},\n "figures": {{\n{body}\n }}\n}}\n'


def decode_kept(data: Mapping[str, Any]) -> dict[str, KeptFigure]:
    """Build the figures from the parsed contents of ``kept_figures.json``."""
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"kept figures: expected schema_version {SCHEMA_VERSION}, "
            f"got {data.get('schema_version')!r}"
        )
    return {
        key: KeptFigure(
            **dict[str, Any](one, parameters=one["parameters"] and tuple(one["parameters"]))
        )
        for key, one in data["figures"].items()
    }
