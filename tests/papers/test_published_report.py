from qkvary.papers.catalog import published_names
from qkvary.papers.published_report import published_report
from qkvary.papers.recomputation import recompute
from qkvary.papers.tables import load_published
from qkvary.reports.tables import Table


def test_every_figure_that_is_not_equal_says_how_and_why() -> None:
    names = list(published_names())
    rows = [row for name in names for row in recompute(name) if row.needs_explanation]
    report = published_report(list(map(load_published, names)), rows, counts=True)
    tables = {
        block.key: block
        for section in report.sections
        for block in section.blocks
        if isinstance(block, Table)
    }
    assert len(tables["verdicts"].rows) == len(names) + 1
    for name in {row.table for row in rows}:
        own = [row for row in rows if row.table == name]
        for row, cells in zip(own, tables[name].rows, strict=True):
            assert row.derivation is not None
            assert cells[1].text == row.figure.printed
            assert cells[2].raw == row.derivation.value
            assert cells[3].text == row.verdict
            assert row.derivation.formula in cells[4].text
            assert row.why in cells[4].text


def test_no_figure_is_said_to_be_none() -> None:
    report = published_report([load_published("three-projections-table-5")], [], counts=False)
    (section,) = report.sections
    assert section.title == "Figures"
    assert report.data["rows"] == []
