"""Quickstart covers what it promises, with one set of hyper-parameters for every variant."""

from qkvary.arch.networks import EncoderConfig
from qkvary.papers.key_value.protocols import SOLVED
from qkvary.papers.ours.studies.quickstart import STUDY

PUBLISHED = {
    "QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=K=V", "(Q=K=V)+",
    "GQA-2", "MQA", "Q-GQA-2", "Q-MQA", "I-K-V",
}  # fmt: skip


def test_solving_is_looked_for_often_enough_to_be_measured() -> None:
    for setting in STUDY.settings:
        if isinstance(setting.network, EncoderConfig):
            assert setting.training.solve_threshold == SOLVED
            assert setting.training.steps >= 20 * setting.training.evaluate_every
            assert not setting.training.stop_when_solved
