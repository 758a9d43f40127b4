"""Local copies of evaluation sets, with the fields that lm-eval's task files expect.

Solved examples come from the training file if it exists, else from the validation file, else from
the evaluated file without the question itself.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import parse_json, read_file

Row = dict[str, Any]

LARGEST_FILE = 2**28
_UNFINISHED = re.compile(r"(?<=[.!?]) ([^.!?]+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask:
    """A task of lm-eval and its local files."""

    config: str
    """The task's configuration file inside lm-eval."""
    evaluated: str
    """The file of the questions."""
    shots: tuple[str, ...]
    """Possible files of solved examples: the first that exists is used, otherwise the file of the
    questions."""
    convert: Callable[[Row], Row]
    """Converts a row of the local file to the fields that the prompts read."""
    usual_shots: int = 5
    """The default number of solved examples."""
    overrides: Mapping[str, Any] | None = None
    """Further changes to the task's configuration for the local files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRows:
    """The documents of a task."""

    evaluated: list[Row]
    """The questions."""
    evaluated_file: str
    """The file of the questions."""
    shots: list[Row] | None
    """Solved examples; ``None`` if they are the other questions."""
    shots_file: str
    """The file of the solved examples."""


def read_rows(name: str, folder: Path) -> LocalRows:
    """Read the documents of a task.

    Args:
        name: A name from ``LOCAL_TASKS``.
        folder: The folder of the local copies.

    Raises:
        UsageError: if the evaluated file does not exist.
        DamagedError: if a file is damaged.
    """
    task = LOCAL_TASKS[name]
    check_questions(name, folder)
    shots = next((file for file in task.shots if (folder / file).is_file()), None)
    return LocalRows(
        evaluated=_read(folder / task.evaluated, task),
        evaluated_file=task.evaluated,
        shots=None if shots is None else _read(folder / shots, task),
        shots_file=task.evaluated if shots is None else shots,
    )


def check_questions(name: str, folder: Path) -> None:
    """Check that the questions of a task are on this machine.

    Raises:
        UsageError: if they are not.
    """
    file = LOCAL_TASKS[name].evaluated
    if not (folder / file).is_file():
        raise UsageError(
            f"expected {file} in {folder} for {name}, got no such file; nothing is downloaded"
        )


def _read(path: Path, task: LocalTask) -> list[Row]:
    lines = read_file(path, limit=LARGEST_FILE).split(b"\n")
    found: list[Row] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(task.convert(cast("Row", parse_json(line))))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise DamagedError(
                    f"{path}:{number} is not a question of this task: a field is missing or wrong"
                ) from None
    if not found:
        raise DamagedError(f"{path} has no questions")
    return found


def _arc(row: Row) -> Row:
    choices = row["choices"]
    texts, labels = list(map(str, choices["text"])), list(map(str, choices["label"]))
    if len(texts) != len(labels) or str(row["answerKey"]) not in labels:
        raise ValueError(row["answerKey"])
    return {
        "question": str(row["question"]),
        "choices": {"text": texts, "label": labels},
        "answerKey": str(row["answerKey"]),
    }


def _hellaswag(row: Row) -> Row:
    """Return the fields, with the change that ``process_docs`` would make and the copy lacks.

    lm-eval capitalises the unfinished sentence at the end of a context, the copy does not: "... on
    a roof. he" becomes "... on a roof. He".
    """
    gold = int(row["gold"])
    query = _UNFINISHED.sub(lambda found: " " + found[1].capitalize(), str(row["query"]))
    choices = list(map(str, row["choices"]))
    if not 0 <= gold < len(choices):
        raise ValueError(gold)
    return {"query": query, "choices": choices, "label": str(gold)}


def _piqa(row: Row) -> Row:
    label = int(row["label"])
    if label not in {0, 1}:
        raise ValueError(label)
    return {**{name: str(row[name]) for name in ("goal", "sol1", "sol2")}, "label": label}


def _winogrande(row: Row) -> Row:
    found = {name: str(row[name]) for name in ("sentence", "option1", "option2", "answer")}
    if "_" not in found["sentence"] or found["answer"] not in {"1", "2"}:
        raise ValueError(found["answer"])
    return found


def _lambada(row: Row) -> Row:
    context, word = str(row["context"]), str(row["continuation"])
    if " " in word:
        raise ValueError(word)
    return {"text": f"{context} {word}"}


def _name_arc(name: str) -> LocalTask:
    return LocalTask(
        config=f"tasks/arc/{name}.yaml",
        evaluated=f"{name}_test.jsonl",
        shots=(f"{name}_train.jsonl", f"{name}_validation.jsonl"),
        convert=_arc,
    )


LOCAL_TASKS: dict[str, LocalTask] = {
    "arc_easy": _name_arc("arc_easy"),
    "arc_challenge": _name_arc("arc_challenge"),
    "hellaswag": LocalTask(
        config="tasks/hellaswag/hellaswag.yaml",
        evaluated="hellaswag_validation.jsonl",
        shots=("hellaswag_train.jsonl",),
        convert=_hellaswag,
        overrides={"process_docs": None},
    ),
    "piqa": LocalTask(
        config="tasks/piqa/piqa.yaml",
        evaluated="piqa_validation.jsonl",
        shots=("piqa_train.jsonl",),
        convert=_piqa,
    ),
    "winogrande": LocalTask(
        config="tasks/winogrande/default.yaml",
        evaluated="winogrande_xl_validation.jsonl",
        shots=("winogrande_xl_train.jsonl",),
        convert=_winogrande,
    ),
    "lambada": LocalTask(
        config="tasks/lambada/lambada_openai.yaml",
        evaluated="lambada_openai_test.jsonl",
        shots=(),
        convert=_lambada,
        usual_shots=0,
    ),
}
"""The tasks with local copies."""
