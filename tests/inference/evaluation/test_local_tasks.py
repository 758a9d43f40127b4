"""Local copies become the fields that lm-eval reads; damage is reported."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS, read_rows
from qkvary.storage.errors import DamagedError, UsageError
from tests.inference.evaluation.task_files import ARC, FILES, HELLASWAG, write_task_files

COUNTS = {
    "arc_easy": 2_376,
    "arc_challenge": 1_172,
    "hellaswag": 10_042,
    "piqa": 1_838,
    "winogrande": 1_267,
    "lambada": 5_153,
}
DATA = Path(os.environ["QKVARY_DATA"]) / "lm_eval" if os.environ.get("QKVARY_DATA") else None


def test_examples_come_from_training_then_validation_then_the_others(tmp_path: Path) -> None:
    folder = write_task_files(tmp_path)
    rows = read_rows("arc_easy", folder)
    assert (rows.evaluated_file, rows.shots_file) == (
        "arc_easy_test.jsonl",
        "arc_easy_validation.jsonl",
    )
    assert rows.shots is not None
    (folder / "arc_easy_train.jsonl").write_text(json.dumps(ARC[2]) + "\n", "utf-8")
    assert read_rows("arc_easy", folder).shots_file == "arc_easy_train.jsonl"
    others = read_rows("piqa", folder)
    assert (others.shots, others.shots_file) == (None, "piqa_validation.jsonl")


def test_an_unfinished_sentence_begins_with_a_capital(tmp_path: Path) -> None:
    """As in the fields of the hub: ctx_a, and ctx_b capitalised."""
    rows = read_rows("hellaswag", write_task_files(tmp_path)).evaluated
    assert [row["query"] for row in rows] == [
        "Roof shingle removal: A man is sitting on a roof. He",
        "Clean and jerk: She bends down and grabs the pole. The lady",
        HELLASWAG[2]["query"],
    ]
    assert [row["label"] for row in rows] == ["3", "3", "0"]


def test_the_last_word_is_put_back(tmp_path: Path) -> None:
    rows = read_rows("lambada", write_task_files(tmp_path)).evaluated
    assert rows[0]["text"].endswith("I don't care about signs")


def damages() -> list[tuple[str, dict[str, Any]]]:
    """Every field of every task missing, and answers that are none of the choices."""
    firsts = {
        name: FILES[LOCAL_TASKS[name].evaluated][0] for name in LOCAL_TASKS if name != "arc_easy"
    }
    found = [
        (name, {key: value for key, value in row.items() if key != lost})
        for name, row in firsts.items()
        for lost in row
        if lost != "id"
    ]
    found += [
        ("arc_challenge", {**ARC[0], "answerKey": "Z"}),
        ("arc_challenge", {**ARC[0], "choices": {"text": ["a"], "label": ["A", "B"]}}),
        ("hellaswag", {**HELLASWAG[0], "gold": 4}),
        ("hellaswag", {**HELLASWAG[0], "gold": -1}),
        ("piqa", {**FILES["piqa_validation.jsonl"][0], "label": 2}),
        ("winogrande", {**FILES["winogrande_xl_validation.jsonl"][0], "answer": "3"}),
        ("winogrande", {**FILES["winogrande_xl_validation.jsonl"][0], "sentence": "none"}),
        ("lambada", {"context": "a", "continuation": "two words"}),
    ]
    return found


@pytest.mark.parametrize(("name", "row"), damages())
def test_damage_is_named_with_its_line(tmp_path: Path, name: str, row: dict[str, Any]) -> None:
    folder = write_task_files(tmp_path)
    path = folder / LOCAL_TASKS[name].evaluated
    path.write_text(path.read_text("utf-8") + json.dumps(row) + "\n", "utf-8")
    line = len(FILES[path.name]) + 1
    with pytest.raises(DamagedError, match=rf"{path.name}:{line} is not a question of this task"):
        read_rows(name, folder)


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected piqa_validation\.jsonl in .* nothing is downl"):
        read_rows("piqa", tmp_path)
    (tmp_path / "piqa_validation.jsonl").write_text("\n", "utf-8")
    with pytest.raises(DamagedError, match="has no questions"):
        read_rows("piqa", tmp_path)
