"""What a person types for a measurement of decoding, and what they are told."""

import shlex
from pathlib import Path

import pytest

from decoding.records import from_json, to_json
from tests.benchmarks.made_up import make_record
from tests.conftest import Typed

SMALL = shlex.split(
    "--d-model=16 --num-heads=2 --num-layers=2 --vocabulary=17 --context=12 --tokens=5 --rounds=2 "
    "--no-memory"
)


def test_a_measurement_is_printed_and_written(tmp_path: Path, typed: Typed) -> None:
    out = tmp_path / "decode"
    words = ("--variant", "QKV", "Q-K=V", "--out", out)
    printed, said = typed.both("bench", "decode", *SMALL, *words)
    for words in (
        "Speed: 1 answer of 12 tokens, float32",
        "x transformers",
        "Tokens per second of Q-K=V against QKV",
        "In float32 all runners gave the same tokens",
        f"written: {out / 'report.md'}",
    ):
        assert words in printed
    assert said.startswith("speed at 12 tokens, batch 1, float32")
    record = from_json((out / "record.json").read_bytes(), where="here")
    assert [row.case.variant for row in record.speed[::4]] == ["QKV", "Q-K=V"]


def test_what_was_measured_is_shown_again(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, page = tmp_path / "one.json", tmp_path / "one.html"
    path.write_bytes(to_json(make_record()))
    monkeypatch.setenv("COLUMNS", "240")
    printed = typed("bench", "decode", "--read", path, "--out", page)
    rows = [line.split() for line in printed.splitlines()]
    # TTFT, TPOT, tokens/s by both clocks, KiB by formula and as allocated, GB/s, ratios.
    for row in (
        "QKV cache 2.00 0.828 1,200 1,200 2,040.0 2,040.0 14.5 91 % 12.0 2.50 3.00",
        "QKV prefix again 24.0 9.94 100 100 – – – – – – –",
    ):
        assert row.split() in rows
    assert page.read_text("utf-8").startswith("<!doctype html>")

    document = typed.json("bench", "decode", "--read", path)
    assert document["schema_version"] == 1
    assert len(document["speeds"]) == len(document["speed"]) == 12
    assert document["speeds"][0]["over_prefix"]["value"] == pytest.approx(12.0)
    assert document["speeds"][0]["over_stock"]["transformers"]["value"] == pytest.approx(2.5)
    assert document["gaps"][0]["error"] == 0
    assert document["answers"]
