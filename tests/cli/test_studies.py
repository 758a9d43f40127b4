"""Listed studies count each run once."""

import re
from pathlib import Path

import pytest

from qkvary.studies.catalog import load_study
from tests.conftest import Typed


def test_runs_of_two_settings_are_counted_once(typed: Typed) -> None:
    listed = {one["name"]: one["runs"] for one in typed.json("studies")["studies"]}
    cells = load_study("lm-dilution").cells()
    assert listed["lm-dilution"] == len({cell.run_key for cell in cells}) == 60
    assert len({cell.run for cell in cells}) == 60
    assert len(cells) == 105


def test_one_of_a_kind_is_singular(typed: Typed) -> None:
    printed = typed("studies")
    assert re.search(r"\b1 setting, ", printed)
    assert not re.search(r"\b1 (variants|settings|seeds|runs)\b", printed)


@pytest.mark.parametrize("option", ["--variant", "--variants"])
def test_a_part_is_chosen_by_the_names_of_the_option_that_train_has(
    option: str, tmp_path: Path, typed: Typed
) -> None:
    found = typed.json("status", "quickstart", option, "MQA", "--out", tmp_path)
    assert found["runs"]["total"] == 48
