"""Healing: attention alone learns, the divergence falls, and a stopped run resumes bit for bit."""

import signal
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from qkvary.conversions.caches.divergence import Comparison
from qkvary.conversions.caches.healing import (
    LEARNING_RATE,
    Distillation,
    choose_learning_rate,
    heal,
)
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import Stop
from qkvary.storage.errors import StoppedError
from tests.conversions.caches.networks import TOKENS, convert, make_config, make_network

NETWORK = make_network(make_config()).float()
MADE = convert(NETWORK, "latent", 16).refitted
COMPARED = Comparison(NETWORK, TOKENS)
STEPS = 8 * 19 * 120


def task() -> Distillation:
    return Distillation(NETWORK, MADE, TOKENS, TOKENS[:2])


def test_divergence_and_loss_are_those_of_probabilities() -> None:
    with torch.no_grad():
        old, new = (one(TOKENS).double().log_softmax(-1) for one in (NETWORK, MADE))
    expected = (old.exp() * (old - new)).sum(-1).mean()
    loss, divergence = COMPARED.measure(MADE)
    assert divergence == pytest.approx(float(expected), rel=1e-4)
    assert loss == pytest.approx(float(F.nll_loss(new[:, :-1].mT, TOKENS[:, 1:])), rel=1e-5)
    loss, divergence = COMPARED.measure(NETWORK)
    assert divergence == 0
    assert loss == pytest.approx(float(F.nll_loss(old[:, :-1].mT, TOKENS[:, 1:])), rel=1e-5)


class StopAfter(Stop):
    """A signal that comes after it was asked for some times."""

    def __init__(self, asked: int) -> None:
        super().__init__(signal.SIGTERM)
        self.left = asked

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def same(one: LanguageModel, other: LanguageModel) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(left[0] == right[0] and torch.equal(left[1], right[1]) for left, right in pairs)


def test_attention_alone_learns_and_a_stopped_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    _, before = COMPARED.measure(MADE)
    kept = {name: value.clone() for name, value in MADE.state_dict().items()}
    whole = heal(task(), tmp_path / "whole", tokens=STEPS, learning_rate=2e-3)
    assert COMPARED.measure(whole)[1] < 0.7 * before
    for name, value in whole.state_dict().items():
        assert torch.equal(MADE.state_dict()[name], kept[name])
        assert torch.equal(value, kept[name]) == (".attention." not in name)
    # A signal in the second step, which a checkpoint of the first one precedes.
    with pytest.raises(StoppedError) as stopped:
        heal(task(), tmp_path / "parts", tokens=STEPS, learning_rate=2e-3, stop=StopAfter(12))
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert list((tmp_path / "parts" / "checkpoints").iterdir())
    assert same(heal(task(), tmp_path / "parts", tokens=STEPS, learning_rate=2e-3), whole)


def test_the_learning_rate_falls_with_the_root_of_the_tokens() -> None:
    assert choose_learning_rate(250_000) == pytest.approx(LEARNING_RATE / 2)
    assert choose_learning_rate(4_000_000) == LEARNING_RATE
