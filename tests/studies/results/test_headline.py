"""The short answer: what it says, and that the intervals support every word of it."""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.headline import write_headline
from qkvary.studies.results.summary import Summary
from qkvary.studies.study import Cell
from tests.studies.made_up import ends_of, gap_of, make_record, make_setting, make_study

NOISE = (0.012, -0.009, 0.003, -0.006, 0.009, 0.0015, -0.0135, 0.003)
"""Around each level, in another order for each variant: its mean is zero."""


def study_of(
    levels: Mapping[str, float] | Callable[[Cell], float],
    *,
    metric: str = "test_loss",
    **more: Any,
) -> Summary:
    """Summarise a study of eight seeds with a level for each variant or cell.

    A guess has a loss of ``ln vocabulary``: 9.2 is far above all levels.
    """
    level = levels if callable(levels) else lambda cell: levels[cell.variant]
    settings = more.pop("settings", (make_setting("reverse"),))
    if metric == "test_loss":
        tasks: list[Any] = [one.task for one in settings]
        settings = [
            replace(
                one,
                task=replace(task, vocabulary=10_000),
                network=replace(one.network, vocabulary=10_000, classes=10_000),
            )
            for one, task in zip(settings, tasks, strict=True)
        ]
    study = make_study(*settings, seeds=range(1, 9), **more)
    records = []
    for cell in study.cells():
        turn = cell.seed + study.variants.index(cell.variant)
        value = level(cell) + NOISE[turn % 8]
        records.append(
            make_record(
                cell,
                0.0,
                metric=metric,
                higher_is_better=metric == "test_accuracy",
                metrics={metric: value, "validation_accuracy": value, "steps_to_solve": None},
            )
        )
    return summarise(study, records)


def test_costs_are_named_by_what_is_shared_and_ordered_by_their_size() -> None:
    levels = {"QKV": 2.2, "Q=K=V": 2.4, "Q-K=V": 2.26, "GQA-2": 2.2, "MQA": 2.2}
    summary = study_of(levels, variants=tuple(levels))
    free, costs = summary.headline
    assert re.fullmatch(r"Sharing heads has no measurable cost \(at most 0\.0\d+ nats\)\.", free)
    assert costs == "K=V costs 0.06 nats and Q=K=V 0.20."
    assert summary.headline_table == "reverse"


def test_what_is_not_decided_comes_last_with_both_ends() -> None:
    labels = ("QKV", "Q=K-V", *(f"Q=K-V@t{number}.0" for number in range(2, 10)))
    levels = {label: {"QKV": 0.5, "Q=K-V": 0.7}.get(label, 0.505) for label in labels}
    summary = study_of(levels, metric="test_accuracy", variants=labels)
    gains, said = summary.headline
    assert gains == "Q=K-V is better by 0.20 of test accuracy."
    assert said.startswith("Not decided: Q=K-V@t")
    named = re.findall(r"from (\S+?)(?: of test accuracy)? better to (\S+) worse", said)
    assert len(named) == 6
    assert re.search(r" and 2 others \(from \S+ better to \S+ worse\)\.$", said)
    gaps = [row.difference for row in summary.table("reverse").rows[2:]]
    ends = sorted((-gap.low, gap.high) for gap in gaps if gap and gap.low and gap.high)
    rest = ends[5:]
    expected = [*ends[:5], (max(low for low, _ in rest), max(high for _, high in rest))]
    for (worse, better), shown in zip(expected, named, strict=True):
        assert better <= float(shown[0]) < better + 0.0011
        assert worse <= float(shown[1]) < worse + 0.0011


def test_the_table_with_the_most_decided_comparisons_comes_first() -> None:
    settings = (make_setting("reverse"), make_setting("swap", task="swap", length=8))
    gaps = {("swap", "Q=K=V"): 0.3, ("reverse", "Q-K=V"): 0.0, ("swap", "Q-K=V"): 0.04}
    summary = study_of(
        lambda cell: 2.0 + gaps.get((cell.setting, cell.variant), 0.0),
        settings=settings,
        variants=("QKV", "Q-K=V", "Q=K=V"),
    )
    assert summary.headline_table == "average of reverse, swap"
    assert summary.headline == (
        "On the average of reverse and swap, K=V costs 0.02 nats and Q=K=V 0.15.",
    )


NAMES = {
    "Q-K=V": "K=V",
    "Q=K=V": "Q=K=V",
    "MQA": "sharing heads",
    "I-K-V": "an identity query",
    "Q-K-V[d/4]": "Q-K-V[d/4]",
}


def test_no_sentence_says_more_than_the_intervals() -> None:
    """In random studies a size stands where its interval excludes zero, and only there."""
    generator = random.Random(7)
    labels = ("QKV", *NAMES)
    decided = undecided = 0
    for _ in range(6):
        levels = {label: 2.0 + generator.choice((0.0, 0.009, 0.15)) for label in labels}
        summary = study_of(levels, variants=labels)
        text = " ".join(summary.headline)
        sizes = re.findall(r"(?:[.,]|and|^) ?(\S[^,.]*?) (?:costs |is better by )?(\d\.\d+)", text)
        said = {name.removeprefix("and ").lower(): float(size) for name, size in sizes}
        for label, name in NAMES.items():
            gap = gap_of(summary.table("reverse"), label)
            assert gap.mean is not None
            if gap.verdict == "not distinguished":
                undecided += 1
                assert re.search(
                    rf"{re.escape(name)}( has no measurable cost)? \(at most", text, re.IGNORECASE
                )
                assert name.lower() not in said
            else:
                decided += 1
                assert said[name.lower()] == pytest.approx(abs(gap.mean), abs=0.0051)
    assert min(decided, undecided) > 5


def test_a_cost_is_none_only_if_the_interval_excludes_two_hundredths_of_the_baseline() -> None:
    sizes = re.compile(r"\d+\.\d+")
    for level in (2.2, 1.0, 0.5):
        summary = study_of({"QKV": level, "MQA": level}, variants=("QKV", "MQA"))
        low, high = ends_of(gap_of(summary.table("reverse"), "MQA"))
        (said,) = summary.headline
        if high < 0.02 * level:
            assert (
                said
                == f"Sharing heads has no measurable cost (at most {sizes.findall(said)[0]} nats)."
            )
        else:
            better, worse = sizes.findall(said)
            assert (
                said == f"Not decided: sharing heads (from {better} nats better to {worse} worse)."
            )
            assert -low <= float(better) < -1.1 * low
            assert high <= float(worse) < 1.1 * high
        assert ("measurable" in said) == (level != 0.5)


@pytest.mark.parametrize(("metric", "guess", "sign"), [("accuracy", 0.1, 1), ("loss", 9.21, -1)])
def test_the_margin_is_a_share_of_what_was_learnt(metric: str, guess: float, sign: int) -> None:
    for learnt, begins in ((0.58, "Not decided: sharing heads (from "), (0.8, "Sharing heads h")):
        level = guess + sign * learnt
        summary = study_of(
            {"QKV": level, "MQA": level}, metric=f"test_{metric}", variants=("QKV", "MQA")
        )
        low, high = ends_of(gap_of(summary.table("reverse"), "MQA"))
        assert 0.02 * 0.58 < max(-low, high) < 0.02 * min(0.68, 0.8)
        _, headline = write_headline(summary.tables, summary.contrasts, summary.baseline)
        assert headline[0].startswith(begins)
