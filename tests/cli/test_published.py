"""The recomputed tables on the command line: in short, row by row, by verdict, as JSON."""

import pytest

from qkvary.papers.catalog import published_names
from qkvary.papers.recomputation import recompute
from tests.conftest import Typed

EVERY = tuple(one for name in published_names() for one in recompute(name))


def test_one_row_of_json(typed: Typed) -> None:
    rows = typed.json("published", "table-10")["rows"]
    row = next(row for row in rows if (row["row"], row["column"]) == ("MQA", "cache"))
    assert (row["printed"], row["value"], row["unit"]) == ("176", 176, "MB")
    assert row["recomputed"] == pytest.approx(22 * 64 * 2 * 2 * 32_768 / 1e6)
    assert row["formula"].startswith("layers x KV heads x head size")
    assert (row["convention"], row["verdict"]) == ("MB of 10^6 bytes", "other convention")
    assert row["reading"] == {"value": 176.0, "convention": "MiB of 2^20 bytes"}
    assert row["others"] == [row["reading"]]
    change = next(row for row in rows if (row["row"], row["column"]) == ("MQA", "change"))
    assert change["low"] < change["recomputed"] < change["high"]


def test_verdicts_choose(typed: Typed) -> None:
    rows = typed.json("published", "--verdict", "wrong", "--verdict", "other-convention")["rows"]
    assert {row["verdict"] for row in rows} == {"wrong", "other convention"}
    assert len(rows) == sum(one.verdict in ("wrong", "other convention") for one in EVERY)
    rows = typed.json("published", "three-projections-table-5", "--verdict", "equal")["rows"]
    assert len(rows) == len(recompute("three-projections-table-5"))
    assert "No number has this verdict." in typed("published", "table-5", "--verdict", "wrong")
