import dataclasses
import itertools

import pytest
import torch
from torch import Tensor, nn

from qkvary.arch.models import as_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.macs import forward_macs
from qkvary.nn.language_model import LanguageModel
from qkvary.studies import timing
from qkvary.studies.study import Study
from qkvary.tasks.catalog import load_task
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.tasks.contract import Batch
from qkvary.training.config import ExecutionConfig, RunConfig
from qkvary.training.presets import find_preset
from tests.studies.toy_study import toy_study


def study_of_widths(widths: range) -> Study:
    study = toy_study([1, 2], steps=7)
    first = study.settings[0]
    settings: list[object] = []
    for width in widths:
        block = dataclasses.replace(first.network.block, d_ff=width)
        network = dataclasses.replace(first.network, block=block)
        settings.append(dataclasses.replace(first, name=f"wide {width}", network=network))
    return dataclasses.replace(study, settings=tuple(settings))  # type: ignore[arg-type]


def test_time_is_interpolated_by_macs(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[RunConfig] = []

    def time_step(run: RunConfig, _seconds: float = 0.0) -> float:
        timed.append(run)
        macs = forward_macs(as_model(run.network), tokens=run.sequence_length, pairs="square").total
        return 0.5 + 1e-3 * macs * run.training.batch_size

    monkeypatch.setattr(timing, "time_step", time_step)
    cells = study_of_widths(range(5, 16)).cells()
    expected = sum(7 * time_step(cell.run) for cell in cells)
    timed.clear()
    assert timing.estimate_seconds(cells) == pytest.approx(expected)
    assert len(timed) == timing.MOST_TIMED
    one = cells[:1]
    assert timing.estimate_seconds(one) == pytest.approx(7 * time_step(one[0].run))


@pytest.mark.parametrize(
    ("name", "most", "layers", "shape"),
    [
        # No step of the whole network is taken, whatever its size.
        ("lm-300m", 1, 1, (1, 64)),
        # The network of small layers at its own length: rows of one layer are faster per MAC.
        ("lm-100k", timing.MOST_TIMED_MACS, 3, (11, 128)),
        ("lm-10m", 10**7, 1, (1, 64)),
    ],
)
def test_a_language_model_is_timed_by_some_of_its_layers(
    name: str, most: int, layers: int, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[LanguageModelConfig, int]] = []
    shapes: set[tuple[int, ...]] = set()

    def build(network: LanguageModelConfig) -> LanguageModel:
        built.append((network, torch.get_num_threads()))
        model = LanguageModel(network)
        model.register_forward_pre_hook(lambda _, given: shapes.add(given[0].shape))
        return model

    monkeypatch.setattr(timing, "LanguageModel", build)
    monkeypatch.setattr(timing, "MOST_TIMED_MACS", most)
    timing._time_layers.cache_clear()  # pyright: ignore[reportPrivateUsage]
    preset = find_preset(name)
    task = LanguageTaskConfig(data="", data_sha256="0", context=preset.context)
    training = dataclasses.replace(preset.training, execution=ExecutionConfig(threads=3))
    run = RunConfig(task=task, network=preset.network, training=training, seed=0)
    assert timing.estimate_language_seconds(run) > 0
    ((network, threads),) = built
    assert network.num_layers == layers
    assert network.vocabulary == min(preset.network.vocabulary, timing.TIMED_VOCABULARY)
    assert shapes == {shape}
    assert threads == 3 != torch.get_num_threads()


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The rows of every loss that is computed, and whether by autocast."""
    found: list[tuple[int, bool]] = []
    task = load_task(toy_study([1]).cells()[0].run.task)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        found.append((len(batch.inputs), torch.is_autocast_enabled("cpu")))
        return type(task).loss(task, model, batch)

    monkeypatch.setattr(task, "loss", loss)
    monkeypatch.setattr(timing, "load_task", lambda _: task)
    return found


def with_training(run: RunConfig, **fields: object) -> RunConfig:
    training = dataclasses.replace(run.training, **fields)  # type: ignore[arg-type]
    return dataclasses.replace(run, training=training)


def test_a_large_step_is_timed_with_fewer_examples(
    losses: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_training(toy_study([1]).cells()[0].run, batch_size=12)
    macs = forward_macs(as_model(run.network), tokens=run.sequence_length, pairs="square").total
    monkeypatch.setattr(timing, "MOST_TIMED_MACS", 3 * macs + 1)
    monkeypatch.setattr(timing, "perf_counter", itertools.count().__next__)
    # A second by this clock for a quarter of the examples.
    assert timing.time_step(run) == 4
    assert set(losses) == {(3, False)}


def test_a_timed_step_has_the_micro_batches_and_precision_of_the_run(
    losses: list[tuple[int, bool]],
) -> None:
    execution = ExecutionConfig(micro_batch_size=2, precision="bf16")
    run = toy_study([1]).cells()[0].run
    timing.time_step(with_training(run, batch_size=5, execution=execution))
    assert losses == [(2, True), (2, True), (1, True)] * (timing.TIMED_STEPS + 1)


def test_timing_leaves_the_threads_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = toy_study([1]).cells()[0]
    run = with_training(cell.run, execution=ExecutionConfig(threads=3))
    cell = dataclasses.replace(cell, run=run)
    seen: list[int] = []

    def note(*_: object) -> float:
        seen.append(torch.get_num_threads())
        return 1.0

    monkeypatch.setattr(timing, "time_step", note)
    before = torch.get_num_threads()
    timing.estimate_seconds([cell])
    assert (set(seen), torch.get_num_threads()) == ({3}, before)
    assert before != 3
