"""What a training reached, as a table: what its record holds, and nothing that is measured now."""

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from qkvary.cli._training_scores import print_scores
from qkvary.studies.running.records import run_identity
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from tests.studies.made_up import make_record, make_study


def shown(study: Study, store: Store) -> str:
    screen = Console(file=io.StringIO(), width=200)
    print_scores(screen, study, store)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


@pytest.fixture
def study() -> Study:
    # Nothing here may compute on the device of the runs: there may be none.
    return dataclasses.replace(make_study(seeds=(1,)), device="cuda")


def fill(study: Study, store: Store, *measured: dict[str, float]) -> None:
    for cell, timing in zip(study.cells(), measured, strict=True):
        claim = store.claim(cell.run_key, run_identity(cell.run))
        assert claim is not None
        record = make_record(cell, 0.5)
        claim.finish(dataclasses.replace(record, timing={**record.timing, **timing}))


def test_what_was_measured_when_a_run_ended_is_shown(study: Study, tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(study, store, {"utilization": 0.375, "product_flops_per_second": 2e11}, {})
    head, first, second = (
        line
        for line in shown(study, store).splitlines()
        if "tokens/s" in line or "QK" in line or "Q-K" in line
    )
    assert "GFLOP/s" in head
    assert "of a large product" in head
    # 250 steps a second, 5 rows of 7 tokens.
    assert [*first.split()][-3:] == ["8,750", "75.0", "38%"]
    assert [*second.split()][-1] == "8,750"


def test_nothing_is_said_of_what_was_not_measured(study: Study, tmp_path: Path) -> None:
    store = Store(tmp_path)
    fill(study, store, {}, {})
    text = shown(study, store)
    assert "tokens/s" in text
    assert "GFLOP/s" not in text
    assert "product" not in text
