"""The number task: windows, splits, and what solvers score that are known beforehand."""

import re
from typing import get_args

import numpy as np
import pytest

from qkvary.data.number_words import load_number_words
from qkvary.papers.key_value.protocols import NUMBER_BATCH, NUMBER_CEILING, NUMBER_STEPS_PER_EPOCH
from qkvary.tasks.config import NumberProtocol, NumberTaskConfig
from qkvary.tasks.contract import Split
from qkvary.tasks.numbers import NumberTask
from tests.tasks.solvers import Solver

PROTOCOLS: tuple[NumberProtocol, ...] = get_args(NumberProtocol)
SPLITS: tuple[Split, ...] = get_args(Split)


def make(context: int = 16, protocol: NumberProtocol = "as-published") -> NumberTask:
    return NumberTask(NumberTaskConfig(context=context, protocol=protocol))


def words(protocol: NumberProtocol) -> list[int]:
    return load_number_words(complete=protocol == "clean").codes.tolist()


def asked(task: NumberTask, split: Split) -> list[list[int]]:
    solver = Solver(lambda row: [0] * len(row), 30)
    task.evaluate(solver, split)
    return solver.asked


def train_windows(task: NumberTask) -> list[list[int]]:
    """All windows of an epoch of batches of one."""
    found: dict[str, list[int]] = {}
    for step in range(10_000):
        (row,) = task.batch(step, 1, 0).inputs.tolist()
        if str(row) in found:
            break
        found[str(row)] = row
    return list(found.values())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("context", NUMBER_STEPS_PER_EPOCH)
def test_windows_of_all_splits_are_the_words_once(context: int, protocol: NumberProtocol) -> None:
    task, every = make(context, protocol), words(protocol)
    count = (len(every) - 1) // context
    expected = [every[start : start + context] for start in range(0, count * context, context)]
    train, validation, test = train_windows(task), *(asked(task, split) for split in SPLITS)
    end = int(0.8 * count)
    if protocol == "as-published":
        assert sorted(train) == sorted(expected[:end])
        assert validation == test == expected[end:]
    else:
        assert sorted(train + validation + test) == sorted(expected)
        assert (validation, test) == (expected[8::10], expected[9::10])
    assert len(train) // NUMBER_BATCH == NUMBER_STEPS_PER_EPOCH[context]


def test_targets_are_the_next_words() -> None:
    every = words("as-published")
    batch = make(8).batch(5, 11, 0)
    for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert row[1:] == targets[:-1]
        starts = (i for i in range(0, len(every), 8) if every[i : i + 8] == row)
        assert targets[-1] in {every[start + 8] for start in starts}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_oracle_scores_one(protocol: NumberProtocol, split: Split) -> None:
    every = words(protocol)
    answers = {str(every[i : i + 16]): every[i + 1 : i + 17] for i in range(0, len(every) - 16, 16)}
    solver = Solver(lambda row: answers[str(row)], 30)
    scores = make(16, protocol).evaluate(solver, split)
    assert scores == {"loss": pytest.approx(0.0, abs=1e-9), "accuracy": 1.0}


def test_a_solver_that_knows_all_numbers_scores_what_the_studies_say() -> None:
    """The mean over all windows of the most frequent next word, and of minus its log frequency."""
    figures = [float(text) for text in re.findall(r"0\.\d+", NUMBER_CEILING)]
    every = np.array(words("clean"))
    starts = np.arange(len(every) - 128)
    known, nats, read = 0.0, 0.0, np.zeros(len(starts), dtype=np.int64)
    found: list[tuple[float, float]] = []
    for length in range(128):
        # Windows with the same words so far have the same number.
        read = np.unique(30 * read + every[starts + length], return_inverse=True)[1]
        nexts, counts = np.unique(30 * read + every[starts + length + 1], return_counts=True)
        likeliest = np.zeros(read.max() + 1)
        np.maximum.at(likeliest, nexts // 30, counts)
        known += likeliest.sum() / len(starts)
        nats -= (counts * np.log(counts / np.bincount(read)[nexts // 30])).sum() / len(starts)
        if length + 1 in NUMBER_STEPS_PER_EPOCH:
            found.append((round(known / (length + 1), 2), round(nats / (length + 1), 2)))
    assert [accuracy for accuracy, _ in found] == figures[:4]
    assert [loss for _, loss in found] == figures[4:]


def test_a_window_of_which_there_are_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="a context of at most 6,309 words"):
        make(6_310)
