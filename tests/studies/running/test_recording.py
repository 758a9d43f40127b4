from qkvary.arch.canonical import from_dict
from qkvary.costs.network import network_costs
from qkvary.studies.records import make_record
from qkvary.training.config import NUMERICS_VERSION, ROUNDING_VERSION, RunConfig
from tests.studies.toy_study import toy_study

CELL = toy_study([5]).cells()[1]


def test_a_record_says_what_was_run() -> None:
    record = make_record(CELL, status="done", started="2026-01-02T03:04:05+00:00")
    assert record.run_key == CELL.run_key == CELL.run.run_key()
    assert from_dict(RunConfig, record.config) == CELL.run
    assert (record.task, record.variant, record.seed) == ("copy", "Q-K=V", 5)
    assert (record.metric, record.higher_is_better) == ("test_accuracy", True)
    assert record.started < record.ended
    assert record.ended.endswith("+00:00")


def test_costs_are_those_of_the_network_at_the_length_of_the_task() -> None:
    record = make_record(CELL, status="done", started="")
    assert record.costs == network_costs(CELL.run.network, length=3).to_dict()
    assert record.costs["cache_bytes_per_token"] is None


def test_the_surroundings_are_recorded() -> None:
    record = make_record(CELL, status="done", started="", environment={"kernel": "AVX2"})
    for name in ("qkvary", "commit", "python", "torch", "platform", "cpu", "cpu_count"):
        assert name in record.environment
    assert record.environment["threads"] == 1
    assert record.environment["rounding"] == ROUNDING_VERSION
    assert record.environment["kernel"] == "AVX2"


def test_the_identity_holds_everything_that_the_key_is_made_of() -> None:
    identity = CELL.run.identity()
    assert from_dict(RunConfig, identity["run"]) == CELL.run
    assert identity["run_key"] == CELL.run_key
    assert identity["data_fingerprint"] == CELL.run.task.data_fingerprint
    assert identity["numerics_version"] == NUMERICS_VERSION
