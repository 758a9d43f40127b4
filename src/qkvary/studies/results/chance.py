"""States in which settings no variant does better than a guess. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from qkvary.studies.results.summary import RunRow
from qkvary.studies.study import Study
from qkvary.text.names import listed
from qkvary.text.numbers import real

LEARNT = 0.1
"""A network counts as having learnt if it covers at least this share of the distance from a guess
to a perfect score."""


def describe_chance(study: Study, runs: Iterable[RunRow]) -> tuple[tuple[str, ...], bool]:
    """State in which settings no variant beats a guess, and whether these are all with results."""
    values: dict[str, dict[str, list[float]]] = {}
    metrics: dict[str, str] = {}
    for run in runs:
        if run.selected and run.value is not None and run.metric is not None:
            values.setdefault(run.setting, {}).setdefault(run.variant, []).append(run.value)
            metrics[run.setting] = run.metric
    settings = [setting for setting in study.settings if setting.name in values]
    guesses = {
        setting.name: f"{metrics[setting.name].removeprefix('test_')} {real(scale.guess)}"
        for setting in settings
        if (scale := setting.task.scale(setting.network, metrics[setting.name])) is not None
        and max(scale.learnt(fmean(some)) for some in values[setting.name].values()) < LEARNT
    }
    if not guesses:
        return (), False
    sentence = (
        f"Nothing was learnt on {listed([*guesses])}: no variant does visibly better than guessing "
        f"({listed([*dict.fromkeys(guesses.values())])})."
    )
    return (sentence,), len(guesses) == len(settings)
