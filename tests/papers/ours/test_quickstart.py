"""Quickstart covers what it promises, with one set of hyper-parameters for every variant."""

from dataclasses import replace

from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.networks import EncoderConfig
from qkvary.papers.key_value.protocols import SOLVED
from qkvary.papers.ours.studies.quickstart import STUDY

PUBLISHED = {
    "QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=K=V", "(Q=K=V)+",
    "GQA-2", "MQA", "Q-GQA-2", "Q-MQA", "I-K-V",
}  # fmt: skip


def test_every_published_variant_and_the_asymmetric_single_projection() -> None:
    assert {format_label(parse_variant(label)) for label in STUDY.variants} == PUBLISHED | {"I-K=V"}
    assert STUDY.baseline == "QKV"


def test_two_synthetic_tasks_characters_and_eight_seeds() -> None:
    tasks = [setting.task.name for setting in STUDY.settings]
    assert tasks == ["swap", "sort", "characters"]
    assert len(STUDY.seeds) == 8


def test_hyper_parameters_and_initial_deviation_are_equal() -> None:
    assert STUDY.learning_rates is None
    for setting in STUDY.settings:
        own = {replace(cell.run.training) for cell in STUDY.cells() if cell.setting == setting.name}
        assert own == {setting.training}
        assert setting.training.optimizer.weight_decay == 0.0
        stds = {
            setting.network.with_variant(parse_variant(label)).layers[0].projection_std
            for label in STUDY.variants
        }
        assert len(stds) == 1


def test_symmetry_is_asked_about_directly() -> None:
    assert ("I-K=V", "Q=K=V") in STUDY.contrasts
    assert all(pair[0] in STUDY.variants and pair[1] in STUDY.variants for pair in STUDY.contrasts)


def test_solving_is_looked_for_often_enough_to_be_measured() -> None:
    for setting in STUDY.settings:
        if isinstance(setting.network, EncoderConfig):
            assert setting.training.solve_threshold == SOLVED
            assert setting.training.steps >= 20 * setting.training.evaluate_every
            assert not setting.training.stop_when_solved
