"""The figures of kept studies that judge claims, as the package carries them. Never imports torch.

``kept_figures.json`` is a copy of what the tables in the folder ``studies`` of the repository say;
``reports.kept_tables`` reads those, and ``studies/claims/make.py`` writes the copy.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Any

from qkvary.literature.claim import ByStudy

SCHEMA_VERSION = 1
NAME = "kept_figures.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFigure:
    """A figure of a kept study with its interval."""

    value: float
    low: float | None
    """The interval, which holds for all comparisons of its table at once; None for none."""
    high: float | None
    detectable: float | None
    """The smallest difference that would have been seen; None if that is not known."""
    runs: int
    """The pairs of runs behind it, or the runs."""
    paired: bool
    parameters: tuple[int, int] | None
    """The parameters of the smallest and the largest of the networks; None for other figures."""


FindKept = Callable[[ByStudy], KeptFigure | None]
"""Returns the figure for which a judge asks; None where it is not kept."""


def find_packaged(judge: ByStudy) -> KeptFigure | None:
    """Return a figure that the package carries."""
    return _packaged().get(judge.key)


@functools.cache
def _packaged() -> Mapping[str, KeptFigure]:
    text = (resources.files("qkvary.studies.results") / NAME).read_text("utf-8")
    return decode_kept(json.loads(text))


def encode_kept(figures: Mapping[str, KeptFigure]) -> str:
    """Return the contents of the file, one line per figure."""
    lines = [
        f"  {json.dumps(key, ensure_ascii=False)}: {json.dumps(asdict(one))}"
        for key, one in sorted(figures.items())
    ]
    body = ",\n".join(lines)
    return f'{{\n "schema_version": {SCHEMA_VERSION},\n "figures": {{\n{body}\n }}\n}}\n'


def decode_kept(data: Mapping[str, Any]) -> dict[str, KeptFigure]:
    """Build the figures from the contents of the file.

    Raises:
        ValueError: if the contents have another schema.
    """
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"kept figures: expected schema_version {SCHEMA_VERSION}, "
            f"got {data.get('schema_version')!r}"
        )
    return {
        key: replace(KeptFigure(**one), parameters=one["parameters"] and tuple(one["parameters"]))
        for key, one in data["figures"].items()
    }
