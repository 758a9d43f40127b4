"""The books of a call of the runner, without any worker."""

from pathlib import Path

import pytest

from qkvary.studies.running.ledger import Ledger
from qkvary.studies.running.messages import WorkerMessage
from qkvary.studies.running.recording import make_record, run_identity
from qkvary.studies.running.records import Status
from qkvary.studies.running.store import Store
from tests.storage.quick_disk import quick_folder
from tests.studies.toy_study import run_toy, toy_study
from tests.studies.toy_worker import RAISES

root = pytest.fixture(quick_folder)


@pytest.mark.parametrize("status", ["failed", "done"])
def test_a_run_that_another_runner_recorded_is_not_missing(root: Path, status: Status) -> None:
    cells, store = toy_study([0]).cells()[:1], Store(root / "runs")
    ledger = Ledger(cells, store)
    claim = store.claim(cells[0].run_key, run_identity(cells[0].run))
    assert claim is not None
    claim.finish(make_record(cells[0], status=status, started="2026-01-01T00:00:00+00:00"))
    ledger.handle(WorkerMessage(kind="given_up", cell=0))
    summary = ledger.summary(strict=False)
    assert (getattr(summary, status), summary.missing, summary.executed) == (1, 0, 0)


def test_a_run_to_be_made_again_keeps_its_record_until_it_is_begun(root: Path) -> None:
    study, store = toy_study([RAISES]), Store(root / "runs")
    run_toy(study, root)
    ledger = Ledger(study.cells(), store)
    ledger.find_open_runs(retry_failed=True)
    assert set(ledger.remaining) == {0, 1}
    assert {store.state(cell.run_key) for cell in ledger.cells} == {"done"}
    assert ledger.is_untouched(0)
    assert run_toy(study, root, retry_failed=True).executed == 2
    assert not ledger.is_untouched(0)
