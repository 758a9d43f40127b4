"""Labels without the score terms that all variants of a study have in common."""

import dataclasses
from typing import Any

from qkvary.reports.variant_diagrams import block_labels
from qkvary.studies.results.summary import Summary


def drop_shared_terms(summary: Summary) -> tuple[Summary, str]:
    """Return a summary with shorter labels, and the ending that was removed from all labels.

    ``Q-K=V@rotary`` becomes ``Q-K=V`` in every text if all variants are rotary; the second value is
    then ``rotary``, else it is empty and the summary is unchanged.
    """
    blocks = {one for label in summary.variants for one in block_labels(label)}
    endings = {label.partition("@")[2] for label in blocks}
    if len(endings) > 1 or endings <= {""}:
        return summary, ""
    ending = endings.pop()
    return _replace(summary, f"@{ending}"), ending


def _replace(value: Any, ending: str) -> Any:
    if isinstance(value, str):
        return value.replace(ending, "")
    if isinstance(value, tuple):
        return tuple(_replace(one, ending) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name for field in dataclasses.fields(value)}
        changed = {name: _replace(getattr(value, name), ending) for name in fields}
        return dataclasses.replace(value, **changed)
    return value
