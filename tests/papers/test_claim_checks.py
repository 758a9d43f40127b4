"""Stored verdicts are checked: two wrong ones among all of them are found, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkvary.papers.catalog import document_names
from qkvary.papers.claim import load_document
from qkvary.papers.claim_checks import find_wrong, read_verdicts
from qkvary.papers.claim_verdicts import judge_claim
from qkvary.papers.claims_report import claim_data
from qkvary.papers.findings import CLAIM_VERDICTS

KEPT = Path(__file__).resolve().parents[2] / "studies" / "claims" / "claims.json"
JUDGED = [
    claim_data(judge_claim(claim))
    for name in document_names()
    for claim in load_document(name).claims
]


@pytest.fixture
def stored() -> list[dict[str, Any]]:
    return json.loads(json.dumps(JUDGED))


def test_what_is_kept_follows() -> None:
    assert find_wrong(read_verdicts(KEPT), JUDGED) == []


def test_two_planted_verdicts_are_found(stored: list[dict[str, Any]]) -> None:
    places = (7, 200)
    for place in places:
        right = stored[place]["verdict"]
        stored[place]["verdict"] = next(one for one in CLAIM_VERDICTS if one != right)
    found = find_wrong(stored, JUDGED)
    assert [one.partition(":")[0] for one in found] == [stored[place]["name"] for place in places]
    assert all("verdict is" in one for one in found)


def test_every_planted_value_is_found(stored: list[dict[str, Any]]) -> None:
    name = "three-projections-54"
    stored, (judged,) = (
        [one for one in every if one["name"] == name] for every in (stored, JUDGED)
    )
    finding = judged["findings"][1]
    assert None not in (finding["value"], finding["low"], finding["detectable"])
    for part, place in ((judged, ""), (finding, "findings 2 ")):
        for field in part.keys() - {"name", "findings"}:
            planted = stored[0]["findings"][1] if place else stored[0]
            planted[field] = 0.5
            said = f"{name}: {place}{field} is 0.5, expected {part[field]!r}"
            assert find_wrong(stored, [judged]) == [said]
            del planted[field]
            assert find_wrong(stored, [judged]) == [said.replace("0.5", "nothing")]
            planted[field] = part[field]
