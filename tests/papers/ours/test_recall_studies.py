"""The studies of recall and of texts have the sizes that their descriptions and sources have."""

import numpy as np
import pytest

from qkvary.data.recall import draw_recall, score_positions
from qkvary.papers.ours.recall import POSITIONAL_FLOORS, recall_floor
from qkvary.studies.catalog import load_study
from qkvary.studies.study import Setting
from qkvary.tasks.config import RecallTaskConfig


def guess_of(setting: Setting) -> float:
    scale = setting.task.scale(setting.network, setting.task.metric)
    assert scale is not None
    assert scale.perfect == 1
    return scale.guess


def test_a_solver_that_recalls_nothing_knows_positions() -> None:
    for setting in load_study("recall-quick").settings:
        guess = guess_of(setting)
        assert f" scores {1 / 4:g} if " in setting.note
        assert f" scores {guess:.3f} if " in setting.note
        assert setting.task.scale(setting.network, "loss") is None
    (setting,) = load_study("authors-quick").settings
    assert guess_of(setting) == 0.25
    assert " scores 0.25" in setting.note


@pytest.mark.parametrize(("length", "pairs"), POSITIONAL_FLOORS)
def test_the_positional_floor_is_what_a_table_of_positions_scores(length: int, pairs: int) -> None:
    task = RecallTaskConfig(length=length, pairs=pairs)
    expected = score_positions(length, pairs, task.power)
    assert POSITIONAL_FLOORS[length, pairs] == round(expected, 3)
    assert f"It scores {expected:.3f} if it answers" in recall_floor(task)
    # A table of the likeliest pair of each position, counted in some sequences, scored in others.
    counted, scored = (
        draw_recall(
            seed=seed,
            length=length,
            pairs=pairs,
            vocabulary=64,
            power=task.power,
            split="test",
            count=4_000,
        ).pairs[:, 2 * pairs :: 2]
        for seed in (7, 8)
    )
    table = np.stack([(counted == pair).sum(axis=0) for pair in range(pairs)]).argmax(axis=0)
    right = (scored == table).sum() / (4_000 * pairs)
    assert abs(right - expected) < 5 * (expected / (4_000 * pairs)) ** 0.5
