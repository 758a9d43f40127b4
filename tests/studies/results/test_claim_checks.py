"""Stored verdicts are checked: two wrong ones among all of them are found, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkvary.literature.claim import document_names, load_document
from qkvary.storage.errors import DamagedError
from qkvary.studies.results.claim_checks import find_wrong, read_verdicts
from qkvary.studies.results.claim_verdicts import CLAIM_VERDICTS, judge_claim

KEPT = Path(__file__).resolve().parents[3] / "studies" / "claims" / "claims.json"
JUDGED = [judge_claim(claim) for name in document_names() for claim in load_document(name).claims]


@pytest.fixture
def stored() -> list[dict[str, Any]]:
    return json.loads(KEPT.read_text("utf-8"))["claims"]


def test_what_is_kept_follows(stored: list[dict[str, Any]]) -> None:
    assert read_verdicts(KEPT) == stored
    assert find_wrong(stored, JUDGED) == []


@pytest.mark.parametrize("places", [(0, 1), (7, 200), (120, 310)])
def test_two_planted_verdicts_are_found(
    stored: list[dict[str, Any]], places: tuple[int, int]
) -> None:
    for place in places:
        right = stored[place]["verdict"]
        stored[place]["verdict"] = next(one for one in CLAIM_VERDICTS if one != right)
    found = find_wrong(stored, JUDGED)
    assert [one.partition(":")[0] for one in found] == [stored[place]["name"] for place in places]
    assert all("verdict is" in one for one in found)


def test_planted_verdicts_over_training_are_found(stored: list[dict[str, Any]]) -> None:
    records = "studies/derived-figures/README.md"
    own = [one for one in stored if any(part["record"] == records for part in one["findings"])]
    assert len(own) == 5
    for claim in own:
        claim["verdict"] = "holds"
    assert [one.split(":")[0] for one in find_wrong(stored, JUDGED)] == [
        claim["name"] for claim in own
    ]


def test_planted_figures_conditions_and_scales_are_found(stored: list[dict[str, Any]]) -> None:
    judged = next(one for one in stored if one["scale"] and one["condition"])
    name = judged["name"]
    for field, wrong in (("condition", "in all networks"), ("scale", "in networks of 1B")):
        right, judged[field] = judged[field], wrong
        assert [one.split(" is ")[0] for one in find_wrong(stored, JUDGED)] == [f"{name}: {field}"]
        judged[field] = right
    judged["findings"][0]["figure"] = "0.1 [0.0, 0.2] nats"
    assert find_wrong(stored, JUDGED)[0].startswith(f"{name}: a figure is '0.1 [0.0, 0.2] nats'")
    judged["findings"].clear()
    assert find_wrong(stored, JUDGED) == [f"{name}: figures are missing"]


def test_claims_that_came_and_went_are_named(stored: list[dict[str, Any]]) -> None:
    gone = stored.pop(3)["name"]
    stored[0] = {**stored[0], "name": "made-up-1"}
    found = find_wrong(stored, JUDGED)
    assert "made-up-1 is not a claim" in found
    assert f"{gone} is missing" in found
    assert len(found) == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"claims": [1]}', '{"claims": [{"name": 1}]}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    path.write_text(text, "utf-8")
    with pytest.raises(DamagedError, match="expected a JSON document of qkvary claims in"):
        read_verdicts(path)
