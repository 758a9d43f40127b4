"""The five synthetic tasks: answers, epochs, scores and where the attention should rest."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch

from qkvary.tasks import digit_sequences
from qkvary.tasks.catalog import load_task
from qkvary.tasks.config import SequenceTaskConfig, SequenceTaskName
from qkvary.tasks.contract import Split
from qkvary.tasks.digit_sequences import DigitSequenceTask
from tests.tasks.solvers import Solver
from tests.tasks.tiny_networks import tiny_network

# Where each answer comes from, written once more and without tensors.
SOURCES: dict[SequenceTaskName, Callable[[list[int]], list[int]]] = {
    "reverse": lambda digits: [len(digits) - 1 - i for i in range(len(digits))],
    "sort": lambda digits: [at for _, at in sorted(zip(digits, range(len(digits)), strict=True))],
    "sub": lambda digits: list(range(len(digits))),
    "swap": lambda digits: [(i + len(digits) // 2) % len(digits) for i in range(len(digits))],
    "copy": lambda digits: list(range(len(digits))),
}


def solve(name: SequenceTaskName, digits: list[int]) -> list[int]:
    found = [digits[at] for at in SOURCES[name](digits)]
    return [9 - digit for digit in found] if name == "sub" else found


def make(name: SequenceTaskName, **changes: int) -> DigitSequenceTask:
    sizes = {"train_examples": 53, "validation_examples": 17, "test_examples": 19} | changes
    task = load_task(SequenceTaskConfig(name=name, **({"length": 7} | sizes)))
    assert isinstance(task, DigitSequenceTask)
    return task


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("length", [1, 6, 7, 16])
def test_answers_are_right(name: SequenceTaskName, length: int) -> None:
    batch = make(name, length=length).batch(0, 23, 0)
    for digits, answers in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert answers == solve(name, digits)


@pytest.mark.parametrize("name", SOURCES)
def test_the_right_cell_is_where_the_answer_comes_from(name: SequenceTaskName) -> None:
    task = make(name, length=7)
    digits = task.batch(0, 23, 0).inputs
    for row, columns in zip(digits.tolist(), task.columns(digits).tolist(), strict=True):
        assert columns == SOURCES[name](row)


def test_an_epoch_shows_every_sequence_once_and_drops_the_rest() -> None:
    task = make("copy", length=11)
    examples = task.batch(0, 53, 3).inputs
    numbers = {tuple(row): number for number, row in enumerate(examples.tolist())}
    assert len(numbers) == 53
    seen = [
        [numbers[tuple(row)] for row in task.batch(step, 10, 3).inputs.tolist()]
        for step in range(10)
    ]
    first, second = list(chain(*seen[:5])), list(chain(*seen[5:]))
    assert len(set(first)) == len(set(second)) == 50
    assert first != second


def oracle(name: SequenceTaskName, *, wrong: int = 0) -> Solver:
    """Answers as the task asks, but for the first digits of every sequence."""

    def answer(digits: list[int]) -> list[int]:
        right = solve(name, digits)
        return [(digit + 1) % 10 for digit in right[:wrong]] + right[wrong:]

    return Solver(answer, 10)


def always(digit: int) -> Solver:
    return Solver(lambda digits: [digit] * len(digits), 10)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("name", SOURCES)
def test_an_oracle_scores_one_and_one_digit_its_share(name: SequenceTaskName, split: Split) -> None:
    task = make(name)
    assert task.evaluate(oracle(name), split)["accuracy"] == 1.0
    shares = [task.evaluate(always(digit), split)["accuracy"] for digit in range(10)]
    assert sum(shares) == pytest.approx(1.0)
    large = make(name, test_examples=2_000, validation_examples=2_000)
    assert large.evaluate(always(3), split)["accuracy"] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("together", [1, 35, 10_000])
def test_accuracy_and_loss_are_means_over_digits(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digit_sequences, "EVALUATION_BATCH_TOKENS", together)
    task = make("reverse")
    scores = task.evaluate(oracle("reverse", wrong=1), "validation")
    assert scores["accuracy"] == pytest.approx(6 / 7)
    assert scores["loss"] == pytest.approx(100 / 7)
    assert "attention_mass_on_target" not in scores


def test_attention_mass_is_the_best_head_per_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heads that split the positions between them together find every answer."""
    task = make("swap", length=6)
    right = torch.eye(6).roll(3, dims=1)
    uniform = torch.full((6, 6), 1 / 6)
    even = (torch.arange(6) % 2 == 0)[:, None]
    heads = torch.stack([torch.where(even, right, uniform), torch.where(even, uniform, right)])
    shared = torch.stack([uniform, right * 0.25 + uniform * 0.75])
    for maps, mass in (
        (torch.stack([heads, uniform.expand(2, 6, 6)]), 1.0),
        (torch.stack([shared, uniform.expand(2, 6, 6)]), 0.25 + 0.75 / 6),
        (uniform.expand(2, 2, 6, 6), 1 / 6),
    ):
        tiny: Any = tiny_network("copy", length=6)
        network = task.build(replace(tiny, vocabulary=10, classes=10), 0)
        monkeypatch.setattr(
            network,
            "attention_maps",
            lambda tokens, maps=maps: maps.expand(len(tokens), *maps.shape),
        )
        found = task.attention_mass_on_target(network)
        assert found == pytest.approx(mass)
