"""What every task file must do; a new file is under test without being mentioned here."""

import ast
import dataclasses
import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

import qkvary.tasks
from qkvary.arch.networks import LanguageModelConfig
from qkvary.storage.errors import DamagedError
from qkvary.tasks.catalog import load_task
from qkvary.tasks.config import SequenceTaskName
from qkvary.tasks.config_parts import HashedData
from qkvary.tasks.contract import Task
from tests.tasks.tiny_networks import task_names, tiny_network, tiny_task

ROOM = Path(qkvary.tasks.__path__[0])
INPUTS = {"anomaly": (11, 64), "images": (1, 6, 6)}
"""The shape of an input that is no row of 7 tokens."""
ONE_TARGET = {*INPUTS, "texts"}
"""The tasks whose inputs have one target."""
TOKENS = {"anomaly": 11, "images": 5}
"""The tokens of a sequence, where they are not 7."""


KINDS = tuple(name for name in task_names() if name not in ("copy", "sort", "sub", "swap"))
"""The tasks, one of those that draw digits."""


@pytest.fixture(params=task_names())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def task(name: str) -> Task:
    return load_task(tiny_task(name))


def test_task_files_are_found() -> None:
    assert {*get_args(SequenceTaskName), "language"} < set(task_names())


def test_file_says_what_it_is_and_has_one_load(task: Task) -> None:
    file = type(task).__module__.rpartition(".")[2]
    tree = ast.parse((ROOM / f"{file}.py").read_text("utf-8"))
    said = (ast.get_docstring(tree) or "").lower()
    assert said.startswith(f"{file}:".replace("_", " "))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assigned = [ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)]
    assert [*functions, *assigned].count("load") == 1


def test_data_with_another_fingerprint_is_refused() -> None:
    configs = [tiny_task(name) for name in task_names()]
    hashed = [config for config in configs if isinstance(config, HashedData)]
    assert {config.name for config in hashed} >= {"language", "texts", "translation"}
    for config in hashed:
        load_task(config)
        other = dataclasses.replace(config, data_sha256="1" * 64)  # type: ignore[type-var]
        with pytest.raises(DamagedError, match="the data is different or was changed"):
            load_task(other)


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_network_follows_from_the_seed_alone(name: str, task: Task) -> None:
    torch.manual_seed(1)
    first = task.build(tiny_network(name), 5).state_dict()
    torch.manual_seed(2)
    second = task.build(tiny_network(name), 5).state_dict()
    third = task.build(tiny_network(name), 6).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], third[key]) for key in first)


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_drawing_and_scoring_leave_the_global_generator_alone(name: str, task: Task) -> None:
    model = task.build(tiny_network(name), 5)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    task.batch(9, 5, 1)
    task.evaluate(model.eval(), "validation")
    assert torch.equal(before, torch.get_rng_state())


def test_batch_is_a_pure_function_of_step_size_and_seed(name: str, task: Task) -> None:
    other = load_task(tiny_task(name))
    asked = [(step, seed) for step in (23, 0, 10, 9, 23) for seed in (1, 0)]
    batches = {key: other.batch(key[0], 5, key[1]) for key in sorted(asked)}
    for step, seed in asked:
        same = task.batch(step, 5, seed)
        assert torch.equal(same.inputs, batches[step, seed].inputs)
        assert torch.equal(same.targets, batches[step, seed].targets)
    assert not torch.equal(batches[9, 0].inputs, batches[9, 1].inputs)
    assert not torch.equal(batches[9, 0].inputs, batches[10, 0].inputs)


def test_batch_has_tokens_or_images_in_and_classes_out(name: str, task: Task) -> None:
    batch = task.batch(3, 5, 0)
    assert batch.inputs.shape == (5, *INPUTS.get(name, (7,)))
    assert batch.targets.shape == ((5,) if name in ONE_TARGET else (5, 7))
    assert batch.inputs.dtype == (torch.float32 if name in INPUTS else torch.int64)
    assert batch.targets.dtype == torch.int64


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_an_untrained_network_is_at_chance(name: str, task: Task) -> None:
    model = task.build(tiny_network(name), 5).eval()
    with torch.no_grad():
        loss = task.loss(model, task.batch(0, 5, 0)).item()
    guess = math.log(tiny_task(name).count_answers(tiny_network(name)) or 0)
    assert guess * 0.8 < loss < guess * 4


def test_a_network_that_prefers_nothing_has_the_loss_of_a_guess(name: str, task: Task) -> None:
    network = tiny_network(name)
    model = task.build(network, 5).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    expected = math.log(tiny_task(name).count_answers(network) or 0)
    assert task.evaluate(model, "test")["loss"] == pytest.approx(expected, rel=2e-6)


def learn(task: Task, name: str, steps: int) -> list[float]:
    model = task.build(tiny_network(name), 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    losses: list[float] = []
    for _ in range(steps):
        loss = task.loss(model, task.batch(0, 3, 0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_one_batch_is_learned_to_near_zero(name: str, task: Task) -> None:
    assert learn(task, name, 90)[-1] < 0.1


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_training_repeats_to_the_last_bit(name: str, task: Task) -> None:
    assert learn(task, name, 5) == learn(load_task(tiny_task(name)), name, 5)


def test_evaluation_is_deterministic_and_has_the_headline(name: str, task: Task) -> None:
    model = task.build(tiny_network(name), 5).eval()
    scores = task.evaluate(model, "validation")
    assert scores == task.evaluate(model, "validation")
    assert {tiny_task(name).metric, "loss"} <= set(scores)
    assert all(type(value) is float and math.isfinite(value) for value in scores.values())


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_attention_example_is_a_distribution_per_row(name: str, task: Task) -> None:
    example = task.attention_example(task.build(tiny_network(name), 5).eval())
    assert example is not None
    tokens = TOKENS.get(name, 7)
    assert example.maps.shape == (2, 3, tokens, tokens)
    np.testing.assert_allclose(example.maps.sum(-1), np.ones((2, 3, tokens)), rtol=1e-6)
    assert len(example.tokens) == len(example.targets) == tokens
    assert all(target is None or 0 <= target < tokens for target in example.targets)


@pytest.mark.parametrize("name", KINDS, indirect=True)
def test_the_other_network_is_refused(name: str, task: Task) -> None:
    is_causal = isinstance(tiny_network(name), LanguageModelConfig)
    other = tiny_network("reverse" if is_causal else "characters")
    with pytest.raises(ValueError, match=f"for task {name}, got"):
        task.build(other, 0)
