"""The recall task: what is asked and scored, and what solvers score that are known beforehand."""

from typing import get_args

import pytest

from qkvary.tasks.config import RecallTaskConfig
from qkvary.tasks.contract import IGNORE_INDEX, Split
from qkvary.tasks.recall import RecallTask
from tests.tasks.solvers import Solver
from tests.tasks.tiny_networks import tiny_network

SPLITS: tuple[Split, ...] = get_args(Split)
VOCABULARY, PAIRS, LENGTH = 40, 5, 26


def make(**changes: int) -> RecallTask:
    sizes = {"train_examples": 23, "validation_examples": 17, "test_examples": 500}
    return RecallTask(
        RecallTaskConfig(length=LENGTH, pairs=PAIRS, vocabulary=VOCABULARY, **sizes | changes)
    )


@pytest.mark.parametrize("split", SPLITS)
def test_an_oracle_scores_one(split: Split) -> None:
    def find(row: list[int]) -> list[int]:
        values = {row[2 * pair]: row[2 * pair + 1] for pair in range(PAIRS)}
        return [values.get(token, 0) for token in row]

    scores = make().evaluate(Solver(find, VOCABULARY), split)
    assert scores == {"loss": pytest.approx(0.0, abs=1e-9), "accuracy": 1.0}


def test_every_key_is_asked_once_behind_the_pairs() -> None:
    batch = make().batch(0, 23, 0)
    for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        pairs = {row[2 * pair]: row[2 * pair + 1] for pair in range(PAIRS)}
        asked = {token: at for at, token in enumerate(row) if at >= 2 * PAIRS and token}
        assert asked.keys() == pairs.keys()
        expected = [IGNORE_INDEX] * LENGTH
        for token, at in asked.items():
            expected[at] = pairs[token]
        assert targets == expected


def test_a_query_points_at_its_value() -> None:
    task = RecallTask(RecallTaskConfig(length=7, pairs=1, vocabulary=11, validation_examples=3))
    example = task.attention_example(task.build(tiny_network("recall"), 0).eval())
    assert example is not None
    (row,) = [row for row, column in enumerate(example.targets) if column is not None]
    assert example.targets[row] == 1
    assert example.tokens[row] == example.tokens[0]
