"""Results: figures as plain data, tables, text and a picture for a notebook."""

import re

import html5lib
import pandas as pd
import pytest

import qkvary as qk
from qkvary.api.results import Result
from qkvary.cli.main import main
from qkvary.costs.network import network_costs

COMMANDS = {
    "cost": ("cost", "lm-10m", "--variant", "Q-K=V", "MQA", "--context", "1k"),
    "plan": ("plan", "lm-10m", "--gpu", "t4", "--users", "7", "--price", "100"),
    "training": ("plan", "300M", "--memory", "40GB", "--goal", "training", "--checkpointing"),
    "variants": ("variants", "--label", "Q-K=V", "--model", "lm-10m", "--length", "97"),
}


def results() -> dict[str, Result[object]]:
    return {
        "cost": qk.cost("LM_10M", variants=("Q-K=V", "MQA"), context="1k"),
        "plan": qk.plan("10M", gpu="t4", users=7, price=100),
        "training": qk.plan("lm-300m", memory="40GB", goal="training", checkpointing=True),
        "variants": qk.variants("q,k=v", model="lm-10M", length=97),
    }


RESULTS = results()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_prints_what_the_command_prints(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "136")
    assert main(list(COMMANDS[name])) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    said = [
        line.replace(": .save(folder)", ": --full") for line in repr(RESULTS[name]).splitlines()
    ]
    assert said == lines


@pytest.mark.parametrize("name", COMMANDS)
def test_a_notebook_shows_the_tables(name: str) -> None:
    html = RESULTS[name]._repr_html_()
    assert html == results()[name]._repr_html_()
    root = html5lib.parseFragment(html, treebuilder="etree", namespaceHTMLElements=False)
    (part,) = root
    assert part.get("class") == "qkvary"
    headings = "".join(part.find("h3").itertext()).replace("\N{WORD JOINER}", "")
    assert headings == RESULTS[name].report.question
    assert part.findall(".//table")
    rules = part.findtext("style") or ""
    assert rules.startswith(".qkvary.qkvary.qkvary {")
    assert rules.count("{") == rules.count("}")
    assert ":root" not in rules


def test_drawings_of_two_results_have_different_names() -> None:
    one, other = (qk.plan("lm-10m", gpu="t4", users=users)._repr_html_() for users in (1, 2))
    names = [set(re.findall(r' id="(d[^"]+)"', html)) for html in (one, other)]
    assert all(names)
    assert names[0].isdisjoint(names[1])


def test_tables_have_unrounded_figures() -> None:
    frame = RESULTS["cost"].to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["variant"])[-2:] == ["Q-K=V", "MQA"]
    costs = network_costs(qk.LanguageModel("lm-10m", variant="MQA").config, length=1024)
    assert frame["parameters"].iloc[-1] == costs.parameters.total
    tables = ("variants", "engines", "quality-300M", "quality-1.2B")
    assert RESULTS["plan"].tables == tables
    assert len(RESULTS["plan"].to_pandas("quality-300M")) == 8
    with pytest.raises(
        ValueError, match="expected the name of a table, got 'engine'; did you mean engines"
    ):
        RESULTS["plan"].to_pandas("engine")


def test_a_missing_pandas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkvary.storage.packages.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pandas is not installed: run pip install"):
        RESULTS["cost"].to_pandas()
