"""The figures of the training cost are those that the benchmarks printed."""

import csv
from pathlib import Path

from tests.studies_scripts.loading import folder_of, load_script

FOLDER = folder_of("training-cost")
script = load_script("training-cost", "measure")


def test_what_is_kept_follows(tmp_path: Path) -> None:
    script.main(["--to", str(tmp_path)])
    found = (tmp_path / "tables" / "figures.csv").read_bytes()
    assert found == (FOLDER / "tables" / "figures.csv").read_bytes()


def test_figures_are_those_of_the_page() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    with (FOLDER / "tables" / "figures.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] == "Q=K=V"]
    assert len(rows) == 6
    for row in rows:
        value, low, high = (1 + float(row[name]) / 100 for name in ("value", "low", "high"))
        assert f"{value:.2f} [{low:.2f}, {high:.2f}]" in page
