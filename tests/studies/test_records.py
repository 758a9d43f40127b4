"""Any record is stored and returned unchanged."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvary.arch.canonical import from_dict
from qkvary.costs.network import network_costs
from qkvary.storage.errors import DamagedError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.studies.records import Record, from_json, make_record, to_json
from qkvary.training.config import NUMERICS_VERSION, ROUNDING_VERSION, RunConfig
from tests.storage.damage import trials
from tests.storage.test_jsonvalues import KEYS, TEXT, VALUES, same
from tests.studies.toy_study import toy_study

CELL = toy_study([5]).cells()[1]
HOSTILE = st.sampled_from(
    [
        "'; DROP TABLE runs; --",
        "<script>alert(1)</script>",
        "=HYPERLINK(1)",
        "../../etc/passwd",
        "%s%n{0}${7*7}",
        "\x00\x1b[31m\u202e\ufeff",
        "\ud800",
        "NaN",
        "x" * 1_000_000,
    ]
)
WORDS = TEXT | HOSTILE


RECORDS = st.builds(
    Record,
    run_key=WORDS,
    config=st.dictionaries(KEYS, VALUES, max_size=3),
    task=WORDS,
    variant=WORDS,
    seed=st.integers(),
    status=st.sampled_from(["done", "failed", "diverged"]),
    message=WORDS,
    metric=WORDS,
    higher_is_better=st.booleans(),
    metrics=st.dictionaries(WORDS, st.floats() | st.integers() | st.none(), max_size=3),
    costs=st.dictionaries(KEYS, VALUES, max_size=2),
    timing=st.dictionaries(KEYS, st.floats(), max_size=3),
    environment=st.dictionaries(KEYS, VALUES, max_size=2),
    started=TEXT,
    ended=TEXT,
    state_sha256=TEXT,
)


@given(RECORDS)
@settings(max_examples=trials("RECORDS", 30))
def test_any_record_comes_back(record: Record) -> None:
    data = to_json(record)
    found = from_json(data, where="record.json")
    assert same(dataclasses.asdict(found), dataclasses.asdict(record))
    assert to_json(found) == data


def changed(**fields: object) -> bytes:
    value = decode(to_json(make_record(CELL, status="done", started="")))
    assert isinstance(value, dict)
    return encode({**value, **fields}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (changed(seed="5"), "fields missing, unknown or of the wrong type: seed"),
        (changed(seed=True), "wrong type: seed"),
        (changed(metrics=[]), "wrong type: metrics"),
        (changed(extra=1), "wrong type: extra"),
        (changed(status="running"), "unknown status 'running'"),
        (changed(schema_version=None), "expected schema_version 1, got None"),
    ],
)
def test_what_is_no_record_is_named(data: bytes, message: str) -> None:
    with pytest.raises(
        DamagedError, match=f"^r.json is not a record of a run: .*{message}"
    ) as caught:
        from_json(data, where="r.json")
    assert str(caught.value).endswith("; train the run again")
    assert caught.value.exit_code == 3


def test_a_record_says_what_was_run_where_and_at_what_cost() -> None:
    began = "2026-01-02T03:04:05+00:00"
    record = make_record(CELL, status="done", started=began, environment={"kernel": "AVX2"})
    assert record.run_key == CELL.run_key == CELL.run.run_key
    assert from_dict(RunConfig, record.config) == CELL.run
    assert (record.task, record.variant, record.seed) == ("copy", "Q-K=V", 5)
    assert (record.metric, record.higher_is_better) == ("test_accuracy", True)
    assert record.started < record.ended
    assert record.ended.endswith("+00:00")
    assert record.costs == network_costs(CELL.run.network, length=3).to_dict()
    assert record.costs["cache_bytes_per_token"] is None
    found = record.environment
    assert {"qkvary", "commit", "python", "torch", "platform", "cpu", "cpu_count"} <= found.keys()
    assert (found["threads"], found["rounding"], found["kernel"]) == (1, ROUNDING_VERSION, "AVX2")
    assert make_record(CELL, status="failed", started="").headline is None


def test_the_identity_holds_everything_that_the_key_is_made_of() -> None:
    identity = CELL.run.identity()
    assert from_dict(RunConfig, identity["run"]) == CELL.run
    assert identity["run_key"] == CELL.run_key
    assert identity["data_fingerprint"] == CELL.run.task.data_fingerprint
    assert identity["numerics_version"] == NUMERICS_VERSION
