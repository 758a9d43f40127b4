"""The page about the theorems: its cases, its statements about blocks, and ranks over training."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkvary.conversions.catalog import rewrite_names
from qkvary.studies.running.store import Store
from tests.conversions.networks import make_network
from tests.studies_scripts.loading import load_script

FOLDER = "why"
networks, figures = load_script(FOLDER, "networks"), load_script(FOLDER, "figures")
script = load_script(FOLDER, "measure")


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
    assert row[:5] == (
        "Theorem 4.2",
        "made up, QKV@alibi",
        "identity-query",
        "I-K-V@alibi",
        800,
    )
    assert row[6] < 1e-9
    with pytest.raises(ValueError, match=r"expected Theorem 4\.2 to be refused for made up"):
        script._refusal(case, store)
    merge = script.Case("Proposition 4.1", "made up", "QKV@alibi", "merge-query-key")
    assert script._refusal(merge, store).startswith("expected one head of 20 channels in layer 1")


def test_a_network_that_was_not_trained_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the network of one head QKV@alibi seed 0"):
        script.load_network(script.CASES[0], Store(tmp_path))


def test_statements_about_blocks_leave_rounding_or_what_networks_leave() -> None:
    found = list(script.find_residuals(width=9, steps=2, widths=(5, 40)))
    exact = ("Lemma 8.1", "Remark 6", "Theorem 8.3")
    assert all(one.error < 1e-10 for one in found if one.statement in exact)
    assert sum(one.statement in exact for one in found) == 4
    (refused,) = (one.error for one in found if one.statement == "Corollary 8.3.1")
    assert refused == 1.0
    assert all(one.error > 0.05 for one in found if one.statement == "Theorem 8.2")
    # Remark 5: g comes nearer to linear with more channels, and with shorter inputs.
    few, few_unit, many, many_unit = (one.error for one in found if one.statement == "Remark 5")
    assert few > many > many_unit
    assert few > few_unit > many_unit > 0


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


def test_the_page_has_every_table() -> None:
    rows = {
        "theorems": ("Theorem 4.2", "made up", "gauge", "I-K-V", -1234, None, 1.2e-14, 2e-5),
        "refusals": ("Theorem 4.2", "made up", "gauge", "expected none"),
        "residuals": ("Lemma", "x", 0.5),
        "rankings": ("made-up", "main", 5, -1.0, None, 0.9, 1.0),
    }
    shown = {
        "theorems": "| Theorem 4.2 | made up | gauge | I-K-V | -1,234 |  | 1.2e-14 | 2.0e-05 |",
        "refusals": "| Theorem 4.2 | made up | gauge | expected none |",
        "residuals": "| Lemma | x | 0.5 |",
        "rankings": "| made-up | main | 5 | −1.00 | – | 0.90 | 1.00 |",
    }
    assert set(rows) == set(script.TITLES)
    for key, row in rows.items():
        kept = [script.read_table(one) for one in rows if one != key]
        more = script.read_table(key)
        table = script.make_table(key, [[cell.raw for cell in line] for line in more.rows] + [row])
        files = script.make_files([*kept, table])
        assert shown[key] in files["README.md"].decode()
        assert set(files) == {"README.md", *(f"tables/{one}.csv" for one in rows)}


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    for key in script.TITLES:
        table = script.read_table(key)
        path = tmp_path / "tables" / f"{key}.csv"
        path.write_bytes(script.table_csv(table).encode())
        assert path.read_bytes() == (script.FOLDER / "tables" / f"{key}.csv").read_bytes()
        assert script.read_table(key, tmp_path) == table


def test_the_kept_page_is_the_template_with_the_figures_of_its_tables_and_studies() -> None:
    files = script.make_files([script.read_table(key) for key in script.TITLES])
    page = files["README.md"].decode()
    assert page == (script.FOLDER / "README.md").read_text("utf-8")
    assert "{" not in page


def test_what_was_found_names_figures_of_the_page() -> None:
    page = " ".join((script.FOLDER / "README.md").read_text("utf-8").split())
    found = (script.FOLDER.parents[2] / "docs" / "findings.md").read_text("utf-8")
    section = found[found.index("[Why it works]") :].partition("What such networks")[0]
    named = re.findall(r"-?\d+\.\d+ \[[^]]+\]", " ".join(section.split()))
    assert len(named) > 20
    assert [one for one in named if one not in page] == []


def test_kept_rankings_are_those_of_the_kept_curves() -> None:
    found = script.ranking_table(script.rank_settings(script.FOLDER.parents[1]))
    kept = script.read_table("rankings")
    assert [[cell.text for cell in row] for row in found.rows] == [
        [cell.text for cell in row] for row in kept.rows
    ]


def write_study(folder: Path) -> None:
    contrasts = [
        "variant,reference,difference,low,high",
        "I-K-V@rotary (b),I-K-V@rotary (a),-0.5,-0.75,-0.25",
        "Q=V@rotary,Q=K-V@rotary,0.1,-0.1,0.3",
    ]
    results = ["table,variant,mean,difference,low,high", "a,QKV@rotary,2.0625,,,"]
    results.append("a,I-K-V@rotary,2.5,0.4375,0.25,0.625")
    runs = ["setting,variant,seed,value"]
    values = {("a", "QKV"): (2, 3), ("b", "QKV"): (2.5, 3.25)}
    values |= {("a", "I-K-V"): (4, 5), ("b", "I-K-V"): (5, 5.5)}
    for (setting, variant), losses in values.items():
        runs += [f"{setting},{variant}@rotary,{seed},{loss}" for seed, loss in enumerate(losses)]
    runs += ["no skip,QKV@rotary,0,3.08", "no skip,QKV@rotary,1,2.5", "no skip,QKV@rotary,2,"]
    tables = folder / "why-made-up" / "tables"
    tables.mkdir(parents=True)
    for name, rows in (("contrasts", contrasts), ("results", results), ("runs", runs)):
        (tables / f"{name}.csv").write_text("\n".join(rows))


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("why-made-up: I-K-V (b) - I-K-V (a)", "-0.500 [-0.750, -0.250]"),
        ("-why-made-up: I-K-V (b) - I-K-V (a)", "0.500 [0.250, 0.750]"),
        ("why-made-up: Q=V - Q=K-V", "0.100 [-0.100, 0.300]"),
        ("why-made-up: I-K-V in a", "0.438 [0.250, 0.625]"),
        ("why-made-up: mean QKV in a", "2.062"),
        ("why-made-up: networks without an attention skip, stuck", "1 of 2"),
        ("why-made-up: networks without an attention skip, their loss", "3.08"),
        ("why-made-up: networks without an attention skip, the others", "2.50"),
        ("residuals: x", "0.25"),
        ("rankings: 0.5 of made-up, other", "0.25 to 0.75"),
        ("rankings: 0.5 of main in made-up", "0.25"),
    ],
)
def test_places_of_the_template_become_figures(
    place: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path)
    monkeypatch.setattr(figures, "STUDIES", tmp_path)
    figures.read_rows.cache_clear()
    tables = {
        "residuals": [{"case": "x", "error": "0.25"}],
        "rankings": [
            {"study": "made-up", "setting": "main", "after_0.5": "0.25"},
            {"study": "other", "setting": "main", "after_0.5": "0.75"},
            {"study": "other", "setting": "few", "after_0.5": ""},
            {"study": "third", "setting": "main", "after_0.5": "0.5"},
        ],
    }
    assert figures.fill(f"It is {{{place}}}.", tables) == f"It is {text}."


def test_changes_are_compared_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path)
    monkeypatch.setattr(figures, "STUDIES", tmp_path)
    figures.read_rows.cache_clear()
    # I-K-V changes by 1 and 0.5, QKV by 0.5 and 0.25: differences of 0.5 and 0.25.
    found = figures.compare_changes("why-made-up", "I-K-V", "QKV", "b", "a")
    assert found.mean == 0.375
    # Two seeds: 12.706 standard errors of 0.125.
    assert found.high - found.mean == pytest.approx(12.7062 * 0.125, rel=1e-5)
    with pytest.raises(ValueError, match="expected one row with"):
        figures.fill("{why-made-up: MQA in a}", {})


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    yield
    figures.read_rows.cache_clear()
