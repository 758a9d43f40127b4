"""A study at the level of guessing says that nothing was learnt, and nothing else."""

import dataclasses
import math

import pytest

from qkvary.arch.named_networks import find_network
from qkvary.studies.results.analysis import summarise
from qkvary.studies.study import Study
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.tasks.config_parts import Scale
from tests.studies.made_up import make_record, make_setting, make_study


def headline(study: Study, values: dict[tuple[str, str], float]) -> tuple[str, ...]:
    """Return the short answer of runs whose result depends on setting and variant."""
    cells = study.cells()
    records = [make_record(cell, values[cell.setting, cell.variant]) for cell in cells]
    return summarise(study, records).headline


@pytest.mark.parametrize(("best", "learns"), [(0.1, False), (0.189, False), (0.191, True)])
def test_a_tenth_of_the_way_is_learnt(best: float, learns: bool) -> None:
    """Of ten symbols: a guess scores 0.1, and 0.19 is a tenth of the way to 1."""
    study = make_study(variants=("QKV", "Q-K=V"), seeds=(1, 2))
    names = [setting.name for setting in study.settings]
    values = {(name, label): 0.1 for name in names for label in ("QKV", "Q-K=V")}
    said = headline(study, values | {(name, "Q-K=V"): best for name in names})
    assert any("nothing was learnt on" in sentence for sentence in said) != learns
    assert learns or len(said) == 1


@pytest.mark.parametrize(("share", "learns"), [(0.91, False), (0.89, True)])
def test_a_loss_is_compared_with_the_logarithm_of_the_vocabulary(
    share: float, learns: bool
) -> None:
    network = find_network("lm-10m")
    setting = dataclasses.replace(
        make_setting("text"),
        task=LanguageTaskConfig(data="none", data_sha256="0" * 64, context=7),
        network=network,
    )
    # The 320 rows of the table are padding but for 257 bytes.
    guess = math.log(257)
    assert setting.task.scale(network, "test_loss") == Scale(guess, 0.0)
    study = make_study(setting, variants=("QKV@rotary",), seeds=(1,), baseline="QKV@rotary")
    record = make_record(
        study.cells()[0],
        1.0,
        metric="test_loss",
        higher_is_better=False,
        metrics={"test_loss": share * guess},
    )
    said = summarise(study, [record]).headline
    assert any("nothing was learnt on text" in sentence for sentence in said) != learns
    assert setting.task.scale(network, "test_perplexity") is None
    exact = dataclasses.replace(network, vocabulary=257)
    assert setting.task.scale(exact, "test_loss") == Scale(guess, 0.0)
