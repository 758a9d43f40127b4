"""Claims on the command line: counted, searched, chosen by verdict, written, checked."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkvary.papers.catalog import document_names
from qkvary.papers.claim import load_document
from tests.conftest import Typed

STUDIES = Path(__file__).resolve().parents[2] / "studies"
EVERY = [claim.name for name in document_names() for claim in load_document(name).claims]


def found(typed: Typed, *options: object) -> list[dict[str, Any]]:
    return typed.json("claims", *options)["claims"]


def test_what_is_said_twice_is_counted_once(typed: Typed) -> None:
    claims = found(typed)
    distinct = [one for one in claims if not one["same_as"]]
    main = [one for one in distinct if one["main"]]
    text = " ".join(typed("claims").split())
    assert 0 < len(main) < len(distinct) < len(claims)
    repeated = f"{len(claims) - len(distinct)} claims that repeat others"
    assert f"Without {repeated}, the total is {len(distinct)} statements. Their verdicts: " in text
    assert f"Abstracts and conclusions contain {len(main)} of these. Their verdicts: " in text
    # A claim whose twin is not shown counts itself.
    (one,) = [one["name"] for one in claims if one["name"] == "poster-1"]
    assert "repeats another" not in typed("claims", one)


def test_documents_verdicts_and_names_choose(typed: Typed) -> None:
    claims = found(typed, "--document", "poster", "--verdict", "does-not-hold")
    assert {one["verdict"] for one in claims} == {"does not hold"}
    assert {one["document"] for one in claims} == {"poster"}
    (one,) = found(typed, "poster-3")
    assert one["name"] == "poster-3"
    assert found(typed, "--search", "zzyzx") == []
    assert "No claim was found.\n" in typed("claims", "--search", "zzyzx")
    near = "No claim was found; did you mean catastrophic?"
    assert near in typed("claims", "--search", "catastrofic")
    # Words that claims have, but none has both.
    assert "No claim was found.\n" in typed("claims", "--search", "catastrophic hebbian")


@pytest.mark.parametrize("verb", ["claims", "published", "figures"])
@pytest.mark.parametrize("folder", ["three_projections", "overview", "key_value"])
def test_a_document_has_the_name_of_its_folder_too(
    verb: str, folder: str, typed: Typed, tmp_path: Path
) -> None:
    """Three verbs read the argument alike, and refuse a document without what they show."""
    rest = ("--out", tmp_path, "--format", "csv") if verb == "figures" else ()
    name = {"overview": "overview-article"}.get(folder, folder.replace("_", "-"))
    if (verb, folder) == ("figures", "overview"):
        said = typed.error(verb, "--document", folder, *rest)
        assert "expected a document with a figure of a paper, got overview-article" in said
        return
    shown = typed.json(verb, "--document", folder, *rest)
    assert shown == typed.json(verb, "--document", name, *rest)
    (rows,) = (shown[key] for key in ("claims", "rows", "figures") if key in shown)
    keys = {"claims": "name", "published": "table", "figures": "name"}
    assert rows
    assert all(row[keys[verb]].startswith(f"{name}-") for row in rows)
    said = typed.error(verb, "--document", "key-valve", *rest)
    assert "expected a document for --document, got 'key-valve'; did you mean key-value?" in said


def test_a_document_makes_the_end_of_a_name_clear(typed: Typed) -> None:
    rows = typed.json("published", "table-2", "--document", "key_value")["rows"]
    assert {row["table"] for row in rows} == {"key-value-table-2"}
    assert "which may be" in typed.error("published", "table-2")


def test_tables_in_a_folder_judge_instead_of_the_package(tmp_path: Path, typed: Typed) -> None:
    packaged = found(typed, "--document", "key-value")
    assert found(typed, "--document", "key-value", "--studies", STUDIES) == packaged
    tables = tmp_path / "lm-small" / "tables"
    tables.mkdir(parents=True)
    text = (STUDIES / "ours" / "lm-small" / "tables" / "results.csv").read_text("utf-8")
    lines = text.splitlines()
    place = lines[0].split(",").index("low")
    turned = [line.split(",") for line in lines]
    for row in turned[1:]:
        row[place : place + 2] = ["-0.9", "-0.8"]
    (tables / "results.csv").write_text("\n".join(map(",".join, turned)) + "\n", "utf-8")
    (one,) = found(typed, "key-value-6", "--studies", tmp_path)
    assert one["verdict"] == "does not hold"
    assert one["needs"] == ""
    (one,) = found(typed, "overview-article-25", "--studies", tmp_path)
    assert (one["verdict"], bool(one["needs"])) == ("not tested here", True)


def test_the_report_is_written_and_checked(tmp_path: Path, typed: Typed) -> None:
    formats = [word for one in ("html", "csv", "json") for word in ("--format", one)]
    typed("claims", "--out", tmp_path / "page", *formats)
    page = tmp_path / "page" / "report.html"
    assert "A test needs" in page.read_text("utf-8")
    assert (tmp_path / "page" / "tables" / "claims.csv").is_file()
    stored = tmp_path / "page" / "report.json"
    assert "every verdict follows" in typed("claims", "--check", stored)
    checked = typed.json("claims", "--check", stored)
    assert (checked["claims"], checked["wrong"]) == (len(EVERY), [])
    content = json.loads(stored.read_text("utf-8"))
    content["claims"][5]["verdict"] = "holds" if content["claims"][5]["verdict"] != "holds" else ""
    stored.write_text(json.dumps(content), "utf-8")
    said = typed.error("claims", "--check", stored, code=3)
    assert f"{content['claims'][5]['name']}: verdict is" in said
