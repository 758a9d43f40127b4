"""Standard errors, chance levels and distances, recomputed from their parts."""

import dataclasses
import math
import statistics

import pytest

from qkvary.inference.evaluation.task_scores import FIVE, Accuracy, TaskScore, average, measure_accuracy


def make_score(task: str, share: Accuracy, normalised: Accuracy | None = None) -> TaskScore:
    return TaskScore(
        task=task,
        documents=4,
        evaluated="file",
        fewshot=0,
        shots_from=None,
        accuracy=share,
        normalised=normalised,
        perplexity=None,
        cut_prompts=0.0,
        version="1",
    )


def test_a_share_has_its_error_and_chance() -> None:
    right = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    choices = [4, 4, 3, 5, 4, 4, 2]
    found = measure_accuracy(right, choices)
    assert found.value == pytest.approx(5 / 7)
    assert found.error == pytest.approx(statistics.stdev(right) / math.sqrt(7), rel=1e-12)
    assert found.chance == pytest.approx(statistics.mean(1 / one for one in choices), rel=1e-12)
    assert found.distance == pytest.approx((found.value - found.chance) / found.error, rel=1e-12)


def test_the_mean_of_five_has_the_chance_of_five() -> None:
    chances = {"arc_challenge": 0.25, "arc_easy": 0.25, "hellaswag": 0.25}
    scores = {
        name: make_score(
            name,
            Accuracy(
                value=0.3 + 0.1 * place, error=0.01 * (place + 1), chance=chances.get(name, 0.5)
            ),
        )
        for place, name in enumerate(FIVE)
    }
    scores["lambada"] = make_score("lambada", Accuracy(value=0.9, error=0.1, chance=None))
    normalised = Accuracy(value=0.9, error=0.02, chance=0.25)
    scores["arc_easy"] = dataclasses.replace(scores["arc_easy"], normalised=normalised)
    found = average(scores)
    assert found is not None
    assert found.accuracy.value == pytest.approx(0.5)
    assert found.accuracy.chance == pytest.approx(0.35)
    assert found.accuracy.error == pytest.approx(0.01 * math.sqrt(1 + 4 + 9 + 16 + 25) / 5)
    assert found.normalised.value == pytest.approx(0.5 + (0.9 - 0.4) / 5)
    assert found.accuracy.distance == pytest.approx(0.15 / found.accuracy.error)
    del scores["piqa"]
    assert average(scores) is None
