"""Writes ``tables/figures.csv`` from what the benchmarks of this page printed, for claims.

    python studies/three_projections/training-cost/measure.py

It measures nothing: ``measured.jsonl`` holds the lines of the benchmarks, ``decode.json`` what
``qkvary bench decode`` kept. Figures are changes in percent: medians within rounds, with order
statistics.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from qkvary.papers.script_figures import figure_row, figures_table
from qkvary.reports.tables import Raw, table_csv
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.studies.results.statistics import Estimate

FOLDER = Path(__file__).resolve().parent
sys.path.append(
    next(str(one / "benchmarks") for one in FOLDER.parents if (one / "benchmarks").is_dir())
)

from decoding.comparisons import compared_seconds  # noqa: E402
from decoding.records import from_json  # noqa: E402
from timing.medians import Median, median_ratio  # noqa: E402

CASE = re.compile(r"(?P<variant>\S+) over QKV[:,] (?P<place>.+)")
TIME, RATE = "time", "rate"


def change_row(ratio: Median, rounds: int, **names: str) -> dict[str, Raw]:
    """Return a ratio as a change in percent."""
    value, low, high = (100 * (one - 1) for one in (ratio.value, ratio.low, ratio.high))
    estimate = Estimate(units=rounds, confidence=0.95, mean=value, low=low, high=high)
    return figure_row(estimate, **names)


def training_rows() -> Iterator[dict[str, Raw]]:
    """Yield the time of a training step of each variant over that of QKV."""
    for line in (FOLDER / "measured.jsonl").read_text("utf-8").splitlines():
        found = json.loads(line)
        case = CASE.search(found["case"])
        if case:
            ratio = Median(found["ratio"], *found["interval"])
            place = f"{found['benchmark']}, {case['place']}"
            names = {"table": place, "variant": case["variant"], "reference": "QKV"}
            yield change_row(ratio, found["rounds"], quantity=TIME, **names)


def decoding_rows() -> Iterator[dict[str, Raw]]:
    """Yield the rate of decoding of each variant over that of those before it."""
    path = FOLDER / "decode.json"
    record = from_json(path.read_bytes(), where=str(path))
    rows = [row for row in record.speed if row.runner == "cache"]
    for other, own in itertools.combinations(rows, 2):
        seconds = compared_seconds(record, own)
        ratio = median_ratio(seconds, compared_seconds(record, other))
        names = {"variant": own.case.variant, "reference": other.case.variant}
        yield change_row(ratio, len(seconds), table="decoding", quantity=RATE, **names)


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
