import dataclasses

import pytest

from qkvary.costs.macs import network_macs
from qkvary.studies.running import timing
from qkvary.studies.study import Study
from qkvary.training.config import RunConfig
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

    def time_step(run: RunConfig) -> float:
        timed.append(run)
        macs = network_macs(run.network, length=run.sequence_length).total
        return 0.5 + 1e-3 * macs * run.training.batch_size

    monkeypatch.setattr(timing, "time_step", time_step)
    cells = study_of_widths(range(5, 16)).cells()
    expected = sum(7 * time_step(cell.run) for cell in cells)
    timed.clear()
    assert timing.estimate_seconds(cells) == pytest.approx(expected)
    assert len(timed) == timing.MOST_TIMED
    one = cells[:1]
    assert timing.estimate_seconds(one) == pytest.approx(7 * time_step(one[0].run))


def test_a_step_takes_time() -> None:
    assert 0 < timing.time_step(toy_study([1]).cells()[0].run) < 60
