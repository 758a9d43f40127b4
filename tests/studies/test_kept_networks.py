"""A study may keep its trained networks: checkpoints that score what their records say."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import RunSummary, StudyRunner
from qkvary.studies.running.store import NETWORK_NAME, Store
from qkvary.studies.study import Setting, Study
from qkvary.tasks.catalog import load_task
from qkvary.training.config import OptimizerConfig, TrainingConfig
from qkvary.training.loop import train
from tests.studies.made_up import make_setting, make_study
from tests.studies.toy_study import stored_record
from tests.tasks.tiny_networks import tiny_network, tiny_task


def characters_study(
    *, keep: bool, steps: tuple[int, ...] = (), length: int = 3, **training_options: Any
) -> Study:
    options: dict[str, Any] = {"evaluate_every": 3, **training_options}
    training = TrainingConfig(
        steps=length, batch_size=5, optimizer=OptimizerConfig(learning_rate=3e-3), **options
    )
    setting = Setting(
        name="characters",
        task=dataclasses.replace(tiny_task("characters"), scored_characters=1_009),
        network=tiny_network("characters"),
        training=training,
        keep_networks=keep,
        keep_steps=steps,
    )
    return make_study(setting, variants=("QKV",), seeds=(3,))


def run(study: Study, path: Path) -> RunSummary:
    return StudyRunner(study, Store(path), executor=LocalExecutor(1)).run()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which one network was trained without and then with being kept."""
    path = tmp_path_factory.mktemp("runs")
    study = characters_study(keep=False)
    key = study.cells()[0].run_key
    assert run(study, path).executed == 1
    assert Store(path).network(key) is None
    before = stored_record(Store(path), key).state_sha256
    assert run(characters_study(keep=True), path).executed == 1
    # It is the same run: keeping is not a part of what names it.
    assert stored_record(Store(path), key).state_sha256 == before
    return path


def test_the_network_scores_what_its_record_says(kept: Path) -> None:
    cell = characters_study(keep=True).cells()[0]
    folder, record = Store(kept).network(cell.run_key), stored_record(Store(kept), cell.run_key)
    assert folder is not None
    network, tokenizer = load_checkpoint(folder)
    assert network.config == cell.run.network
    task = load_task(cell.run.task)
    with torch.no_grad():
        assert task.evaluate(network, "test")["loss"] == record.metrics["test_loss"]
    assert tokenizer is not None
    assert tokenizer.encode("To be") == [32, 53, 1, 40, 43]


def test_a_kept_network_is_not_trained_again(kept: Path) -> None:
    assert run(characters_study(keep=True), kept).executed == 0
    assert run(characters_study(keep=False), kept).executed == 0


def test_a_damaged_network_is_noticed_and_trained_again(kept: Path) -> None:
    study = characters_study(keep=True)
    key, store = study.cells()[0].run_key, Store(kept)
    weights = store.directory(key) / NETWORK_NAME / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "model.safetensors" in str(store.find_damage(key))
    summary = run(study, kept)
    assert summary.executed == 1
    assert any("the run is repeated" in note for note in summary.notes)
    assert weights.read_bytes() == whole
    assert store.find_damage(key) is None


def test_networks_of_chosen_steps_are_those_of_shorter_runs(kept: Path) -> None:
    study = characters_study(keep=True, steps=(0, 2))
    (cell,) = study.cells()
    # Keeping more is not a part of what names the run either, and makes it again.
    before = stored_record(Store(kept), cell.run_key).state_sha256
    assert run(study, kept).executed == 1
    assert run(study, kept).executed == 0
    assert stored_record(Store(kept), cell.run_key).state_sha256 == before
    task = load_task(cell.run.task)
    begun = task.build(cell.run.network, cell.seed)
    weights: dict[int | None, dict[str, torch.Tensor]] = {}
    for step in cell.kept_networks:
        folder = Store(kept).network(cell.run_key, step)
        assert folder is not None
        weights[step] = load_checkpoint(folder).network.state_dict()
    for name, value in begun.state_dict().items():
        assert torch.equal(weights[0][name], value)
    schedule = cell.run.training.schedule
    assert schedule.name == "constant"
    shorter = dataclasses.replace(cell.run.training, steps=2, evaluate_every=2)
    two = dataclasses.replace(cell.run, training=shorter)
    directory = kept / "shorter"
    directory.mkdir()
    outcome = train(two, task, directory)
    for name, value in outcome.network.state_dict().items():
        assert torch.equal(weights[2][name], value), name
        assert not torch.equal(weights[None][name], value), name


def test_a_run_solved_before_a_kept_step_is_not_trained_again(tmp_path: Path) -> None:
    solved: dict[str, Any] = {
        "length": 4,
        "evaluate_every": 1,
        "solve_threshold": 1e9,
        "stop_when_solved": True,
    }
    study = characters_study(keep=True, steps=(0, 1, 3), **solved)
    (cell,) = study.cells()
    assert run(study, tmp_path).executed == 1
    record = stored_record(Store(tmp_path), cell.run_key)
    assert record.metrics["steps"] == 1
    kept = [Store(tmp_path).network(cell.run_key, step) is not None for step in (0, 1, 3)]
    assert kept == [True, True, False]
    assert run(study, tmp_path).executed == 0


@pytest.mark.parametrize("steps", [(3,), (-1,), (1, 1)])
def test_steps_that_cannot_be_kept_are_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected keep_steps from 0 to 2 without duplicates"):
        characters_study(keep=True, steps=steps)
    with pytest.raises(ValueError, match="expected keep_networks=True with keep_steps"):
        characters_study(keep=False, steps=(1,))


def test_only_language_models_are_kept() -> None:
    with pytest.raises(ValueError, match="expected a language model with keep_networks=True"):
        dataclasses.replace(make_setting("reverse"), keep_networks=True)
