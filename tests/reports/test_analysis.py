"""The report of an analysis says what its figures say."""

import json

import pytest

from qkvary.reports.analysis import analysis_report
from qkvary.reports.json_data import to_json
from tests.analysis.examples import make_analysis
from tests.reports.subjects import tables


def test_tables_have_a_row_per_layer_with_the_value_of_random_weights() -> None:
    found, layers = tables(analysis_report(make_analysis(), "model")), make_analysis().layers
    assert list(found) == ["keys-and-values", "cosines", "ranks", "attention"]
    for key in ("keys-and-values", "attention"):
        assert [row[0].raw for row in found[key].rows] == [1, 2, 3]
    row = found["keys-and-values"].rows[1]
    assert row[2].raw == pytest.approx(layers[1].explained)
    assert row[2].below == (f"random {100 * layers[1].explained_chance:.1f} %",)
    ranks = found["ranks"].rows
    assert len(ranks) == 12
    assert {cell.below[0].split()[0] for row in ranks for cell in row[3:]} == {"random"}
    product = [row for row in ranks if row[1].raw == "W_Q W_K^T"]
    expected = [rank for rank in layers[0].ranks if rank.matrix == "query-key"]
    assert product[0][3].raw == pytest.approx(
        sum(rank.found.entropy for rank in expected) / len(expected)
    )


def test_data_has_all_figures_but_maps() -> None:
    report = analysis_report(make_analysis(), "model")
    document = json.loads(to_json(report.data))
    assert "maps" not in document
    layer = document["layers"][0]
    assert len(layer["key_values"]) == 2
    assert len(layer["attention"]) == 4
    assert layer["forecast_nats_per_token"] == pytest.approx(make_analysis().layers[0].forecast)
    assert [one.key for one in report.datasets] == list(tables(report))
