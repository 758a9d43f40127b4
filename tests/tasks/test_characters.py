"""Characters: windows, the two ways to score, and that every character counts once."""

import math

import pytest
import torch
from torch import Tensor

from qkvary.data.shakespeare import load_shakespeare
from qkvary.tasks.catalog import load_task
from qkvary.tasks.characters import CharacterTask
from qkvary.tasks.config import CharacterTaskConfig
from qkvary.tasks.contract import Split


def make(**changes: object) -> CharacterTask:
    task = load_task(CharacterTaskConfig(**({"context": 13} | changes)))  # type: ignore[arg-type]
    assert isinstance(task, CharacterTask)
    return task


class Unigram(torch.nn.Module):
    """Predicts the frequencies of a text, whatever it sees, and counts what it sees."""

    def __init__(self, codes: Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter((torch.bincount(codes, minlength=65) + 1.0).log())
        self.shapes: list[tuple[int, int]] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.shapes.append((tokens.shape[0], tokens.shape[1]))
        return self.weight.expand(*tokens.shape, 65)


def held_out() -> Tensor:
    return torch.tensor(load_shakespeare().split(0.9)[1])


def test_targets_are_the_next_characters_of_the_training_text() -> None:
    batch = make().batch(5, 17, 2)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    text = "".join(load_shakespeare().alphabet[code] for code in load_shakespeare().codes)
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        window = "".join(load_shakespeare().alphabet[code] for code in [inputs[0], *targets])
        assert window in text[:1_003_854]


def test_windows_start_anywhere_and_end_at_the_last_character() -> None:
    """A training part of 500 characters and windows of 497 leave three places to start."""
    task = make(context=497, train_fraction=500.5 / 1_115_394)
    starts = [task.batch(step, 1, 0).inputs[0, :9].tolist() for step in range(40)]
    text = load_shakespeare().codes[:11].tolist()
    assert all(start in (text[:9], text[1:10], text[2:11]) for start in starts)
    assert len({tuple(start) for start in starts}) == 3


@pytest.mark.parametrize(
    ("split", "batch_size", "scored"),
    [("validation", 64, None), ("test", 64, None), ("test", 5_000, None), ("test", 64, 1_000)],
)
def test_exact_scores_every_character_but_the_first_once(
    split: Split, batch_size: int, scored: int | None
) -> None:
    """Or the first of them, where so many are asked for."""
    codes = held_out()
    model, count = Unigram(codes), scored or 111_539
    task = make(evaluation_batch_size=batch_size, scored_characters=scored)
    scores = task.evaluate(model, split)
    surprise = -model.weight.log_softmax(0)[codes[1 : count + 1]]
    assert scores["loss"] == pytest.approx(surprise.double().mean().item(), rel=1e-5)
    assert scores["bits_per_character"] == pytest.approx(scores["loss"] / math.log(2))
    assert sum(rows * columns for rows, columns in model.shapes) == count
    assert model.shapes[-1] == (1, count % 13)


def test_sampled_scores_the_same_random_windows_every_time() -> None:
    model = Unigram(held_out())
    task = make(evaluation="sampled", evaluation_batches=3, evaluation_batch_size=7)
    scores = task.evaluate(model, "validation")
    assert model.shapes == [(7, 13)] * 3
    assert scores == task.evaluate(model, "validation")
    exact = task.evaluate(model, "test")
    assert scores["loss"] != exact["loss"]
    assert scores["loss"] == pytest.approx(exact["loss"], abs=0.3)
