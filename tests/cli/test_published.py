"""The recomputed tables on the command line: in short, row by row, by verdict, as JSON."""

import json
from typing import Any

import pytest

from qkvary.cli.main import main
from qkvary.papers.catalog import published_names
from qkvary.papers.recomputation import recompute

EVERY = tuple(one for name in published_names() for one in recompute(name))


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["published", *options]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    return json.loads(printed(capsys, *options, "--json"))


def test_one_row_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = document(capsys, "table-10")["rows"]
    row = next(row for row in rows if (row["row"], row["column"]) == ("MQA", "cache"))
    assert row["printed"] == "176"
    assert row["value"] == 176
    assert row["recomputed"] == pytest.approx(22 * 64 * 2 * 2 * 32_768 / 1e6)
    assert row["formula"].startswith("layers x KV heads x head size")
    assert row["convention"] == "MB of 10^6 bytes"
    assert row["unit"] == "MB"
    assert row["verdict"] == "other convention"
    assert row["reading"] == {"value": 176.0, "convention": "MiB of 2^20 bytes"}
    assert row["others"] == [row["reading"]]
    change = next(row for row in rows if (row["row"], row["column"]) == ("MQA", "change"))
    assert change["low"] < change["recomputed"] < change["high"]


def test_verdicts_choose(capsys: pytest.CaptureFixture[str]) -> None:
    rows = document(capsys, "--verdict", "wrong", "--verdict", "other-convention")["rows"]
    assert {row["verdict"] for row in rows} == {"wrong", "other convention"}
    assert len(rows) == sum(one.verdict in ("wrong", "other convention") for one in EVERY)
    rows = document(capsys, "three-projections-table-5", "--verdict", "equal")["rows"]
    assert len(rows) == len(recompute("three-projections-table-5"))
    assert "No figure with this verdict." in printed(capsys, "table-5", "--verdict", "wrong")
