"""A study may keep its trained networks: checkpoints that score what their records say."""

import dataclasses
from pathlib import Path

import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.studies.running.runner import RunnerOptions, RunSummary, run_study
from qkvary.studies.running.store import NETWORK_NAME, Store
from qkvary.studies.study import Setting, Study
from qkvary.tasks.catalog import load_task
from qkvary.training.config import OptimizerConfig, TrainingConfig
from tests.studies.made_up import make_setting
from tests.tasks.tiny_networks import tiny_network, tiny_task


def characters_study(*, keep: bool, variants: tuple[str, ...] = ("QKV",)) -> Study:
    training = TrainingConfig(
        steps=3, batch_size=5, optimizer=OptimizerConfig(learning_rate=3e-3), evaluate_every=3
    )
    task = dataclasses.replace(tiny_task("characters"), scored_characters=1_009)
    network = tiny_network("characters")
    setting = Setting(
        name="characters", task=task, network=network, training=training, keep_networks=keep
    )
    return Study(
        name="kept",
        question="Is it there?",
        description="One network.",
        settings=(setting,),
        variants=variants,
        seeds=(3,),
    )


def run(study: Study, path: Path) -> RunSummary:
    return run_study(study, Store(path), RunnerOptions(workers=1, quiet=True))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which one network was trained without and then with being kept."""
    path = tmp_path_factory.mktemp("runs")
    study = characters_study(keep=False)
    key = study.cells()[0].run_key
    assert run(study, path).executed == 1
    assert Store(path).network(key) is None
    before = Store(path).record(key)
    assert run(characters_study(keep=True), path).executed == 1
    after = Store(path).record(key)
    assert before is not None
    assert after is not None
    # It is the same run: keeping is not a part of what names it.
    assert before.state_sha256 == after.state_sha256
    return path


def test_the_network_scores_what_its_record_says(kept: Path) -> None:
    cell = characters_study(keep=True).cells()[0]
    folder, record = Store(kept).network(cell.run_key), Store(kept).record(cell.run_key)
    assert folder is not None
    assert record is not None
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


def test_only_language_models_are_kept() -> None:
    with pytest.raises(ValueError, match="expected a language model with keep_networks, got"):
        dataclasses.replace(make_setting("reverse"), keep_networks=True)
