import csv
import io

from qkvary.reports.study_data import study_datasets
from qkvary.reports.tables import table_csv
from qkvary.studies.results.summary import Summary
from tests.reports.synthetic import make_summary


def csv_files(summary: Summary) -> dict[str, str]:
    tables = study_datasets(summary)
    return {f"{table.key}.csv": table_csv(table) for table in tables}


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_every_table_is_exported() -> None:
    summary = make_summary()
    files = csv_files(summary)
    assert set(files) == {
        "results.csv",
        "contrasts.csv",
        "frontiers.csv",
        "solving.csv",
        "costs.csv",
        "runs.csv",
        "curves.csv",
        "published-1-three-projections-table-2.csv",
    }
    assert len(read(files["runs.csv"])) == len(summary.runs)
    assert len(read(files["results.csv"])) == sum(len(table.rows) for table in summary.tables)
    assert len(read(files["curves.csv"])) == sum(len(curve.steps) for curve in summary.curves)


def test_contrasts_are_exported_with_their_sentences() -> None:
    summary = make_summary()
    rows = read(csv_files(summary)["contrasts.csv"])
    wanted = [(one, row) for one in summary.contrasts for row in one.rows]
    assert len(wanted) == 4 * len(summary.tables)
    for row, (contrast, source) in zip(rows, wanted, strict=True):
        assert (row["variant"], row["reference"]) == (contrast.variant, contrast.reference)
        assert (row["table"], row["verdict"]) == (source.table, source.difference.verdict)
        assert row["difference"] == repr(source.difference.mean)
        assert row["low"] == repr(source.difference.low)
        assert row["comparisons"] == str(len(wanted))
        assert row["sentence"].lstrip("'") == source.sentence
