"""The claims of the documents: the files are valid, and what they name exists."""

import ast
import functools
from pathlib import Path
from typing import Any, get_args

import pytest

from qkvary.papers.catalog import document_names
from qkvary.papers.claim import (
    ByComparison,
    ByFigure,
    ByStudy,
    ByTest,
    Shown,
    decode_document,
    load_document,
)
from qkvary.papers.tables import load_published

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = [claim for name in document_names() for claim in load_document(name).claims]
WHOLE = {
    "key-value": ("abstract", "conclusion"),
    "query-identity": ("abstract", "conclusion"),
    "three-projections": ("abstract", "section 4"),
    "poster": ("finding", "conclusion 1", "conclusion 2", "conclusion 3", "limitations"),
    "overview-article": ("introduction", "conclusion", "outlook"),
}
"""The places of each document whose sentences are all there."""


@functools.cache
def functions_of(path: str) -> set[str]:
    """The functions of a test file, without running it."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_there_are_claims_of_five_documents() -> None:
    assert set(document_names()) == set(WHOLE)
    assert len(CLAIMS) >= 120
    for name, places in WHOLE.items():
        found = [claim.place for claim in load_document(name).claims]
        assert all(any(place in one for one in found) for place in places), name


@pytest.mark.parametrize("name", document_names())
def test_what_a_judge_names_exists(name: str) -> None:
    for judge in (judge for claim in load_document(name).claims for judge in claim.judges):
        match judge:
            case ByFigure():
                load_published(judge.table).figure(judge.row, judge.column)
            case ByComparison():
                for one in (judge.first, judge.second):
                    if one is not None:
                        found = load_published(one.table).figure(one.row, one.column)
                        assert found.value is not None
            case ByTest():
                path, _, test = judge.node.partition("::")
                assert test in functions_of(path), judge.node
                assert judge.says.endswith(".")
                assert judge.shows in get_args(Shown)
            case ByStudy():
                assert [*(ROOT / "studies").glob(f"*/{judge.study}/README.md")], judge.study
                assert judge.unit
                assert judge.shows in ("claim", "neither")


def document(**entry: Any) -> dict[str, Any]:
    claim = {"number": 1, "place": "abstract", "claim": "So it is.", "kind": "measured", **entry}
    return {
        "schema_version": 1,
        "document": "made-up",
        "title": "A title",
        "source": "A source",
        "claims": [claim],
    }


def test_a_document_is_read() -> None:
    judges = [
        {"figure": ["poster-text", "steps at 1.2B"], "literal": True},
        {"compare": [["poster-300m", "MQA", "perplexity"]], "below": 6},
        {"test": "tests/a.py::test_b", "says": "It is so.", "shows": "opposite"},
        {"study": "s", "table": "t", "variant": "v", "reference": "r", "above": 0, "unit": "nats"},
    ]
    (claim,) = decode_document(document(judges=judges), "made-up").claims
    figure, comparison, test, study = claim.judges
    assert figure == ByFigure(
        table="poster-text", row="steps at 1.2B", column="value", literal=True
    )
    assert isinstance(comparison, ByComparison)
    assert (comparison.second, comparison.claimed.below) == (None, 6.0)
    assert isinstance(test, ByTest)
    assert test.shows == "opposite"
    assert isinstance(study, ByStudy)
    assert study.key == "s | t | v | r | "
    assert claim.name == "made-up-1"
    assert (claim.quantifier, claim.main, claim.same_as) == ("", False, "")
    fields = {"main": True, "same_as": "made-up-2", "untested": "speed", "words": "edge, Pareto"}
    (claim,) = decode_document(
        document(judges=judges, quantifier="every", **fields), "made-up"
    ).claims
    assert claim.quantifier == "every"
    assert {name: getattr(claim, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"kind": "opinion"}, "claim made-up-1: expected one of the kinds .*, got 'opinion'"),
        ({"quantifier": "most"}, "claim made-up-1: expected some or every .*, got 'most'"),
        (
            {"judges": [{"belief": 1}]},
            r"expected a judge with one of the keys figure, .*; got the keys \['belief'\]",
        ),
        ({"judges": [{"compare": [["a", "b"]]}]}, "expected a range with above or below"),
        ({"judges": [{"compare": [["a", "b"]], "above": 2, "below": 1}]}, "expected a range"),
    ],
)
def test_a_damaged_claim_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_document(document(**entry), "made-up")
