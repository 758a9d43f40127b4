"""Writes ``tables/figures.csv`` from what the benchmarks of this page printed, for claims.

    python studies/training-cost/measure.py

It measures nothing: ``measured.jsonl`` holds the lines of the benchmarks, ``decode.json`` what
``qkvary bench decode`` kept. Figures are medians of ratios within rounds, with order statistics.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from qkvary.inference.benchmark.comparisons import compared_seconds
from qkvary.inference.benchmark.medians import median_ratio
from qkvary.inference.benchmark.records import from_json
from qkvary.reports.script_figures import figure_row, figures_table
from qkvary.reports.tables import Raw, table_csv
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.studies.results.statistics import Estimate

FOLDER = Path(__file__).parent
CASE = re.compile(r"(?P<variant>\S+) over QKV[:,] (?P<place>.+)")
TIME, RATE = "relative time", "relative rate"


def training_rows() -> Iterator[dict[str, Raw]]:
    """Yield the time of a training step of each variant over that of QKV."""
    for line in (FOLDER / "measured.jsonl").read_text("utf-8").splitlines():
        found = json.loads(line)
        case = CASE.search(found["case"])
        if case:
            low, high = found["interval"]
            ratio = Estimate(
                units=found["rounds"], confidence=0.95, mean=found["ratio"], low=low, high=high
            )
            place = f"{found['benchmark']}, {case['place']}"
            names = {"table": place, "variant": case["variant"], "reference": "QKV"}
            yield figure_row(ratio, **names, quantity=TIME)


def decoding_rows() -> Iterator[dict[str, Raw]]:
    """Yield the rate of decoding of each variant over that of those before it."""
    path = FOLDER / "decode.json"
    record = from_json(path.read_bytes(), where=str(path))
    rows = [row for row in record.speed if row.runner == "cache"]
    for other, own in itertools.combinations(rows, 2):
        seconds = compared_seconds(record, own)
        ratio = median_ratio(seconds, compared_seconds(record, other))
        estimate = Estimate(
            units=len(seconds), confidence=0.95, mean=ratio.value, low=ratio.low, high=ratio.high
        )
        names = {"variant": own.case.variant, "reference": other.case.variant}
        yield figure_row(estimate, table="decoding", quantity=RATE, **names)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of the tables")
    path = parser.parse_args(arguments).to / "tables" / "figures.csv"
    make_directory(path.parent)
    table = figures_table((*training_rows(), *decoding_rows()))
    atomic_write_file(path, table_csv(table).encode())


if __name__ == "__main__":
    main()
