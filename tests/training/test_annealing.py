"""The temperature of every step is that of its formula, also where a run is resumed."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import EncoderConfig
from qkvary.nn.attention import Attention, anneal
from qkvary.nn.encoder import Encoder
from qkvary.tasks.contract import Batch, EvaluationContext, Network, Split
from qkvary.training.config import ExecutionConfig, TemperatureSchedule
from qkvary.training.loop import Outcome, train
from tests.training.toy import ToyTask, toy_network, toy_run

STEPS, START, ANNEALED = 6, 16.0, 4
FACTORS = [16.0, 8.0, 4.0, 2.0, 1.0, 1.0, 1.0]
"""start^(1 - t/4), written down."""


class EncoderTask(ToyTask):
    """The toy's task with a real encoder, whose temperatures it notes."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[float] = []
        self.scored: list[float] = []

    def build(self, network: Network, seed: int) -> nn.Module:
        assert isinstance(network, EncoderConfig)
        return Encoder(network, seed=seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.trained.append(factor_of(model))
        return super().loss(model, batch)

    def evaluate(
        self, model: nn.Module, split: Split, *given: EvaluationContext
    ) -> dict[str, float]:
        self.scored.append(factor_of(model))
        return super().evaluate(model, split, *given)


def factor_of(model: nn.Module) -> float:
    (factor,) = {one.annealing for one in model.modules() if isinstance(one, Attention)}
    return factor


def run_to(directory: Path, task: EncoderTask, steps: int = STEPS + 1) -> Outcome:
    schedule = TemperatureSchedule(start=START, steps=ANNEALED)
    run = toy_run(steps=STEPS, evaluate_every=2, temperature=schedule)
    return train(run, task, directory, stop=lambda: len(task.trained) >= steps)


def test_every_step_and_score_has_the_temperature_of_the_formula(tmp_path: Path) -> None:
    task = EncoderTask()
    outcome = run_to(tmp_path, task)
    assert task.trained == FACTORS[:STEPS]
    assert task.scored == [FACTORS[2], FACTORS[4], FACTORS[6], FACTORS[6]]
    assert factor_of(outcome.network) == 1.0
    (tmp_path / "plain").mkdir()
    plain = train(toy_run(steps=STEPS, evaluate_every=2), EncoderTask(), tmp_path / "plain")
    assert plain.state_sha256 != outcome.state_sha256


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = run_to(tmp_path / "whole", EncoderTask())
    for _ in range(STEPS - 1):
        assert run_to(tmp_path / "parts", EncoderTask(), 1).status == "stopped"
    last = EncoderTask()
    parts = run_to(tmp_path / "parts", last)
    assert last.trained == FACTORS[STEPS - 1 : STEPS]
    assert (parts.state_sha256, parts.metrics) == (whole.state_sha256, whole.metrics)


@pytest.mark.parametrize("label", ["QKV", "(Q=K-V)+@alibi@t0.5", "Q=K-V@diag-mean", "Q-K=V@soft"])
def test_an_annealed_layer_is_one_with_that_temperature(label: str) -> None:
    variant = parse_variant(label)
    hotter = dataclasses.replace(variant, temperature=4 * variant.temperature)
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    layer, expected = (
        Attention(d_model=12, num_heads=3, variant=one, seed=0).double()
        for one in (variant, hotter)
    )
    anneal(layer, 4.0)
    with torch.no_grad():
        assert torch.equal(layer(x), expected(x))


def test_a_run_that_cannot_be_annealed_is_refused() -> None:
    schedule = TemperatureSchedule(start=2.0)
    with pytest.raises(ValueError, match="expected compile=False with an annealed temperature"):
        toy_run(temperature=schedule, execution=ExecutionConfig(compile=True))
    with pytest.raises(ValueError, match=r"that ends at the variant's own temperature, .*40 steps"):
        toy_run(temperature=schedule, solve_threshold=0.5, stop_when_solved=True)
    with pytest.raises(ValueError, match=r"that ends at the variant's own temperature, .*41 steps"):
        toy_run(temperature=TemperatureSchedule(start=2.0, steps=41))
    with pytest.raises(ValueError, match=r"variants with a softmax temperature .* the core sima"):
        dataclasses.replace(toy_run(temperature=schedule), network=toy_network("QKV@sima"))
