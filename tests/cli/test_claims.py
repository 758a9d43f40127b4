"""Claims on the command line: counted, searched, chosen by verdict, written, checked."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkvary.cli.main import main
from qkvary.papers.catalog import document_names
from qkvary.papers.claim import load_document

STUDIES = Path(__file__).resolve().parents[2] / "studies"
EVERY = [claim.name for name in document_names() for claim in load_document(name).claims]


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["claims", *options]) == 0
    return capsys.readouterr().out


def found(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    return json.loads(printed(capsys, *options, "--json"))["claims"]


def test_what_is_said_twice_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    claims = found(capsys)
    distinct = [one for one in claims if not one["same_as"]]
    main = [one for one in distinct if one["main"]]
    text = " ".join(printed(capsys).split())
    assert 0 < len(main) < len(distinct) < len(claims)
    repeated = f"{len(claims) - len(distinct)} claims that repeat others"
    assert f"Without {repeated}, {len(distinct)} statements: " in text
    assert f"Of these, {len(main)} statements of abstracts and conclusions: " in text
    # A claim whose twin is not shown counts itself.
    (one,) = [one["name"] for one in claims if one["name"] == "poster-1"]
    assert "repeats another" not in printed(capsys, one)


def test_documents_verdicts_and_names_choose(capsys: pytest.CaptureFixture[str]) -> None:
    claims = found(capsys, "--document", "poster", "--verdict", "does-not-hold")
    assert {one["verdict"] for one in claims} == {"does not hold"}
    assert {one["document"] for one in claims} == {"poster"}
    (one,) = found(capsys, "poster-3")
    assert one["name"] == "poster-3"
    assert found(capsys, "--search", "zzyzx") == []
    assert "No claim was found.\n" in printed(capsys, "--search", "zzyzx")
    near = "No claim was found; did you mean catastrophic?"
    assert near in printed(capsys, "--search", "catastrofic")
    # Words that claims have, but none has both.
    assert "No claim was found.\n" in printed(capsys, "--search", "catastrophic hebbian")


def test_tables_in_a_folder_judge_instead_of_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packaged = found(capsys, "--document", "key-value")
    assert found(capsys, "--document", "key-value", "--studies", str(STUDIES)) == packaged
    tables = tmp_path / "lm-small" / "tables"
    tables.mkdir(parents=True)
    text = (STUDIES / "ours" / "lm-small" / "tables" / "results.csv").read_text("utf-8")
    lines = text.splitlines()
    place = lines[0].split(",").index("low")
    turned = [line.split(",") for line in lines]
    for row in turned[1:]:
        row[place : place + 2] = ["-0.9", "-0.8"]
    (tables / "results.csv").write_text("\n".join(map(",".join, turned)) + "\n", "utf-8")
    (one,) = found(capsys, "key-value-6", "--studies", str(tmp_path))
    assert one["verdict"] == "does not hold"
    assert one["needs"] == ""
    (one,) = found(capsys, "overview-article-25", "--studies", str(tmp_path))
    assert (one["verdict"], bool(one["needs"])) == ("not tested here", True)


def test_the_report_is_written_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    formats = [word for one in ("html", "csv", "json") for word in ("--format", one)]
    printed(capsys, "--out", str(tmp_path / "page"), *formats)
    page = tmp_path / "page" / "report.html"
    assert "A test needs" in page.read_text("utf-8")
    assert (tmp_path / "page" / "tables" / "claims.csv").is_file()
    stored = tmp_path / "page" / "report.json"
    assert "every verdict follows" in printed(capsys, "--check", str(stored))
    checked = json.loads(printed(capsys, "--check", str(stored), "--json"))
    assert (checked["claims"], checked["wrong"]) == (len(EVERY), [])
    content = json.loads(stored.read_text("utf-8"))
    content["claims"][5]["verdict"] = "holds" if content["claims"][5]["verdict"] != "holds" else ""
    stored.write_text(json.dumps(content), "utf-8")
    assert main(["claims", "--check", str(stored)]) == 3
    assert f"{content['claims'][5]['name']}: verdict is" in capsys.readouterr().err
