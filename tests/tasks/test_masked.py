"""Masked characters: what is hidden, what is scored, and what solvers score that know the text."""

from typing import get_args

import pytest
import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.data.shakespeare import load_shakespeare
from qkvary.tasks.config import MaskedTaskConfig
from qkvary.tasks.contract import IGNORE_INDEX, Split
from qkvary.tasks.masked import MaskedTask
from tests.tasks.solvers import Solver

SPLITS: tuple[Split, ...] = get_args(Split)
MASK = CHARACTERS = 65


def make_tiny_task(length: int) -> MaskedTaskConfig:
    return MaskedTaskConfig(context=length, scored_characters=500)


def make_tiny_network(length: int) -> EncoderConfig:
    return EncoderConfig(
        attention=AttentionConfig(d_model=24, num_heads=3),
        block=BlockConfig(d_ff=29),
        num_layers=2,
        vocabulary=CHARACTERS + 1,
        classes=CHARACTERS,
        max_tokens=length,
        positions="learned",
    )


def test_four_of_five_chosen_characters_are_hidden_and_half_of_the_rest_replaced() -> None:
    task = MaskedTask(MaskedTaskConfig(context=40))
    batch = task.batch(3, 2_000, 7)
    chosen = batch.targets != IGNORE_INDEX
    # 15 % of 40 in every window, everywhere in it.
    assert chosen.sum(dim=1).tolist() == [6] * 2_000
    places = chosen.double().mean(dim=0)
    assert 0.11 < places.min() < places.max() < 0.19
    shown, truth = batch.inputs[chosen], batch.targets[chosen]
    hidden = shown == MASK
    assert hidden.double().mean().item() == pytest.approx(0.8, abs=0.015)
    others, answers = shown[~hidden], truth[~hidden]
    # A random character is the right one once in 65.
    assert (others == answers).double().mean().item() == pytest.approx(33 / 65, abs=0.04)
    assert len(others[others != answers].unique()) > 60


def test_with_its_answers_a_window_is_a_piece_of_its_part_of_the_text() -> None:
    text = load_shakespeare()
    train, held_out = (bytes(part.tolist()) for part in text.split(0.9))
    task = MaskedTask(MaskedTaskConfig(context=31, scored_characters=1_000))
    scored = list(task.evaluation_batches("test"))
    for batches, part in (([task.batch(0, 9, 1)], train), (scored, held_out)):
        for batch in batches:
            seen = torch.where(batch.targets == IGNORE_INDEX, batch.inputs, batch.targets)
            assert all(bytes(row) in part for row in seen.tolist())
    assert sum(len(batch.inputs) for batch in scored) == 1_000 // 31


@pytest.mark.parametrize("split", SPLITS)
def test_a_copier_is_right_where_nothing_was_changed(split: Split) -> None:
    task = MaskedTask(MaskedTaskConfig(context=20, scored_characters=60_000))
    batches = list(task.evaluation_batches(split))
    right = total = 0
    for batch in batches:
        for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            answered = [(token, t) for token, t in zip(row, targets, strict=True) if t >= 0]
            right += sum(token % MASK == target for token, target in answered)
            total += len(answered)
    assert total == 60_000 // 20 * 3
    copier = Solver(lambda row: [token % MASK for token in row], CHARACTERS)
    scores = task.evaluate(copier, split)
    assert scores["accuracy"] == pytest.approx(right / total)
    assert scores["loss"] == pytest.approx(100.0 * (1 - right / total), rel=1e-5)


def test_rows_of_a_batch_are_those_of_the_whole() -> None:
    task = MaskedTask(make_tiny_task(11))
    whole, part = task.batch(5, 6, 2), task.batch(5, 6, 2, slice(2, 5))
    assert torch.equal(part.inputs, whole.inputs[2:5])
    assert torch.equal(part.targets, whole.targets[2:5])


def test_a_window_longer_than_the_held_out_text_is_refused() -> None:
    with pytest.raises(ValueError, match="a context of at most 50, the number of held-out"):
        MaskedTask(MaskedTaskConfig(context=51, scored_characters=50))
