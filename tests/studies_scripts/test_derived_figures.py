"""Figures over trainings follow from the kept runs."""

import csv
import json
import lzma
from pathlib import Path

import pytest

from tests.studies_scripts.loading import folder_of, load_script

FOLDER = folder_of("derived-figures")
script = load_script("derived-figures", "measure")
WITH = (folder_of("why-weight-decay") / "runs.jsonl.xz", "I-K-V@rotary", "QKV@rotary")


def find_row(table: str) -> dict[str, str]:
    with (FOLDER / "tables" / "figures.csv").open(encoding="utf-8") as file:
        (row,) = (one for one in csv.DictReader(file) if one["table"] == table)
    return row


def test_what_is_kept_follows(tmp_path: Path) -> None:
    script.main(["--to", str(tmp_path)])
    for name in ("README.md", "tables/figures.csv"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_the_gap_is_that_of_the_logged_losses() -> None:
    path, ours, reference = WITH
    gaps: dict[str, list[float]] = {ours: [], reference: []}
    with lzma.open(path, "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            run = json.loads(line)
            config = json.loads(run["config.json"])["run"]
            if config["training"]["optimizer"]["weight_decay"] != 1.0:
                continue
            events = [json.loads(one) for one in run["metrics.jsonl"].splitlines()]
            trained = [one["loss"] for one in events if one["event"] == "train"][-6:]
            (test,) = (one["loss"] for one in events if one["event"] == "test")
            gaps[config["network"]["attention"]["variant"]].append(test - sum(trained) / 6)
    row = find_row("why-weight-decay, weight decay 1")
    assert len(gaps[ours]) == len(gaps[reference]) == int(row["runs"]) == 5
    assert float(row["value"]) == pytest.approx((sum(gaps[ours]) - sum(gaps[reference])) / 5)


def test_a_row_names_its_networks() -> None:
    row = find_row("why-weight-decay, weight decay 1")
    assert (row["parameters_least"], row["parameters_most"]) == ("154048", "166528")
