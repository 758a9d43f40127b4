"""The page about the theorems: its cases, its statements about blocks, and ranks over training."""

from pathlib import Path

import pytest

from qkvary.conversions.catalog import rewrite_names
from qkvary.studies.running.store import Store
from tests.conversions.networks import make_network
from tests.studies_scripts.loading import load_script

FOLDER = "why"
networks, script = load_script(FOLDER, "networks"), load_script(FOLDER, "measure")


def test_every_case_has_a_network_and_every_rewrite_a_case() -> None:
    cells = {(cell.setting, cell.variant) for cell in networks.STUDY.cells()}
    cases = (*script.CASES, *script.REFUSED)
    assert {(case.setting, case.variant) for case in cases} == cells
    assert {case.rewrite for case in cases} == set(rewrite_names())


def test_statements_hold_and_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    network = make_network("QKV@alibi")

    def load(_case: object, _store: object) -> object:
        return network

    monkeypatch.setattr(script, "load_network", load)
    store = Store(tmp_path)
    case = script.Case("Theorem 4.2", "made up", "QKV@alibi", "identity-query")
    row = script._describe(case, script.rewrite(case, store))
    # Two layers of 20 x 20.
    assert [cell.text for cell in row[:5]] == [
        "Theorem 4.2",
        "made up, QKV@alibi",
        "identity-query",
        "I-K-V@alibi",
        "800",
    ]
    assert float(row[6].text) == pytest.approx(row[6].raw, rel=0.05)
    assert row[6].raw < 1e-9
    with pytest.raises(ValueError, match=r"expected Theorem 4\.2 to be refused for made up"):
        script._refusal(case, store)
    merge = script.Case("Proposition 4.1", "made up", "QKV@alibi", "merge-query-key")
    assert script._refusal(merge, store).startswith("expected one head of 20 channels in layer 1")


def test_a_network_that_was_not_trained_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the network of one head QKV@alibi seed 0"):
        script.load_network(script.CASES[0], Store(tmp_path))


def test_statements_about_blocks_leave_rounding_or_what_networks_leave() -> None:
    found = list(script.find_residuals(width=9, steps=2))
    exact = ("Lemma 8.1", "Remark 6", "Theorem 8.3")
    assert all(one.error < 1e-10 for one in found if one.statement in exact)
    assert sum(one.statement in exact for one in found) == 4
    (refused,) = (one.error for one in found if one.statement == "Corollary 8.3.1")
    assert refused == 1.0
    assert all(one.error > 0.05 for one in found if one.statement in ("Theorem 8.2", "Remark 5"))


def write_curves(folder: Path, losses: dict[str, dict[int, float]]) -> None:
    rows = ["setting,variant,quantity,step,seconds,mean,low,high,runs"]
    for variant, steps in losses.items():
        for step, loss in steps.items():
            rows.append(f"main,{variant},validation loss,{step},1,{loss},{loss},{loss},3")
            rows.append(f"main,{variant},train loss,{step},1,7,7,7,3")
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "curves.csv").write_text("\n".join(rows))


def test_variants_are_ranked_beside_the_end(tmp_path: Path) -> None:
    names = "ABCDE"
    middle = (0.0, 1.0, 2.0, 4.0, 3.0)
    steps = {name: {10: -float(n), 50: middle[n], 100: float(n)} for n, name in enumerate(names)}
    write_curves(tmp_path / "enough", steps)
    write_curves(tmp_path / "few", {name: steps[name] for name in names[:4]})
    (found,) = script.rank_settings(tmp_path)
    assert (found.study, found.setting, found.variants) == ("enough", "main", 5)
    first, quarter, half, late = found.correlations
    assert first == pytest.approx(-1)
    # Nothing was measured near a quarter or three quarters.
    assert quarter is late is None
    # Two neighbours of five are exchanged: 1 - 6 (1 + 1) / (5 (25 - 1)).
    assert half == pytest.approx(0.9)
    (row,) = script.ranking_table([found]).rows
    assert [cell.text for cell in row[:4]] == ["enough", "main", "5", "−1.00"]


def test_the_page_has_every_table(tmp_path: Path) -> None:
    del tmp_path
    tables = [script.residual_table([script.Residual("Lemma", "x", 0.5)]), script.ranking_table([])]
    files = script.make_files(tables)
    page = files["README.md"].decode()
    assert "| Lemma | x | 0.5 |" in page
    assert "{residuals}" not in page
    assert set(files) == {"README.md", "tables/residuals.csv", "tables/rankings.csv"}


def test_the_kept_page_is_the_template_with_its_tables() -> None:
    page = (script.FOLDER / "README.md").read_text("utf-8")
    template = (script.FOLDER / script.TEMPLATE).read_text("utf-8")
    for key in ("theorems", "refusals", "residuals", "rankings"):
        assert f"{{{key}}}" in template
        assert f"{{{key}}}" not in page
        before = template.partition(f"{{{key}}}")[0].rpartition("}")[2].strip()
        assert before in page
