import dataclasses

import pytest
import torch

from qkvary.arch.networks import EncoderConfig
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from qkvary.training.optimizers import (
    learning_rate,
    make_optimizer,
    momentum,
    optimizer_tensors,
    restore_optimizer,
    set_schedule,
    weight_decays,
)
from tests.training.toy import ToyModel, toy_network

CONFIG = OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.1)


def training(config: OptimizerConfig, schedule: str = "constant") -> TrainingConfig:
    return TrainingConfig(
        steps=8,
        batch_size=1,
        optimizer=config,
        schedule=ScheduleConfig(name=schedule),  # type: ignore[arg-type]
        evaluate_every=8,
    )


def mixed_network() -> EncoderConfig:
    plain, identity = toy_network().layers[0], toy_network("I-K-V").layers[0]
    return dataclasses.replace(toy_network(), attention=(plain, identity))


def test_each_block_follows_its_own_layer() -> None:
    decays = weight_decays(ToyModel(0), mixed_network(), CONFIG)
    assert decays["blocks.0.weight"] == 0.1
    assert decays["blocks.1.weight"] == decays["blocks.1.bias"] == 0.1 * 0.3125
    assert decays["embedding.weight"] == decays["head.bias"] == 0.1


def test_only_matrices_may_decay() -> None:
    config = dataclasses.replace(CONFIG, decay="matrices")
    for name, decay in weight_decays(ToyModel(0), toy_network(), config).items():
        assert decay == (0.1 if name.endswith("weight") else 0.0)


def test_groups_hold_every_parameter_once() -> None:
    model = ToyModel(0)
    optimizer = make_optimizer(model, mixed_network(), CONFIG)
    members = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(members) == sorted(map(id, model.parameters()))
    assert sorted(group["weight_decay"] for group in optimizer.param_groups) == [0.03125, 0.1]
    assert all(group["fused"] for group in optimizer.param_groups)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_one_step_is_that_of_torch(name: str) -> None:
    config = dataclasses.replace(
        CONFIG, name=name, learning_rate=0.003, betas=(0.8, 0.97), eps=1e-7
    )
    ours, theirs = ToyModel(1), ToyModel(1)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    reference = kind(
        theirs.parameters(), lr=0.003, betas=(0.8, 0.97), eps=1e-7, weight_decay=0.1, foreach=False
    )
    optimizer = make_optimizer(ours, toy_network(), config)
    set_schedule(optimizer, training(config), 0)
    for _ in range(3):
        for model, steps in ((ours, optimizer), (theirs, reference)):
            steps.zero_grad()
            model.eval()(torch.tensor([[1, 2, 3]])).square().sum().backward()
            steps.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_the_state_comes_back() -> None:
    model = ToyModel(2)
    optimizer = make_optimizer(model, mixed_network(), CONFIG)
    assert optimizer_tensors(optimizer) == {}
    model(torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}
    assert len(saved) == 3 * len(list(model.parameters()))
    fresh = make_optimizer(model, mixed_network(), CONFIG)
    restore_optimizer(fresh, saved)
    for name, tensor in optimizer_tensors(fresh).items():
        assert torch.equal(tensor, saved[name])


def test_all_variants_decay_alike_if_requested() -> None:
    config = dataclasses.replace(CONFIG, decay_by_variant=False)
    assert set(weight_decays(ToyModel(0), toy_network("I-K-V"), config).values()) == {0.1}


def test_a_cycle_of_adam_is_that_of_fastai() -> None:
    """Weights decay first, by rate times decay.

    Both averages start at zero, and each is divided by what a constant gradient of one would have
    made of it with the momentum of this step.
    """
    config = OptimizerConfig(
        name="adamw",
        learning_rate=0.1,
        betas=(0.95, 0.99),
        eps=1e-5,
        weight_decay=0.01,
        decay="matrices",
    )
    cycle = training(config, "one_cycle")
    model = ToyModel(3)
    optimizer = make_optimizer(model, toy_network(), config)
    expected = {name: value.detach().double() for name, value in model.named_parameters()}
    averages = {name: torch.zeros_like(value) for name, value in expected.items()}
    squares = {name: torch.zeros_like(value) for name, value in expected.items()}
    for step in range(cycle.steps):
        optimizer.zero_grad()
        model.eval()(torch.tensor([[1, 2, step % 7]])).square().sum().backward()
        rate = learning_rate(cycle.schedule, peak=0.1, step=step, steps=8)
        beta = momentum(cycle.schedule, highest=0.95, step=step, steps=8)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad.double()
            averages[name] = beta * averages[name] + (1 - beta) * gradient
            squares[name] = 0.99 * squares[name] + 0.01 * gradient**2
            decay = 0.01 if parameter.ndim > 1 else 0.0
            root = (squares[name] / (1 - 0.99 ** (step + 1))).sqrt() + 1e-5
            moved = averages[name] / (1 - beta ** (step + 1)) / root
            expected[name] = expected[name] * (1 - rate * decay) - rate * moved
        set_schedule(optimizer, cycle, step)
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.double(), expected[name], rtol=1e-4, atol=1e-5)
