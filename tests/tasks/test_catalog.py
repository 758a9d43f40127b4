"""Tasks are found by the name of their file."""

from dataclasses import dataclass

import pytest

from qkvary.tasks.catalog import load_task


@dataclass(frozen=True)
class Other:
    name: str


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("revers", "did you mean reverse\\?"),
        ("zzz", "choices: anomaly, characters, copy, images, language, "),
        ("config", "unknown task 'config'"),
    ],
)
def test_unknown_tasks_suggest_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        load_task(Other(name=name))  # type: ignore[arg-type]
