"""Local copies of evaluation sets, with the fields that lm-eval's task files expect."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

from qkvary.storage.errors import DamagedError
from qkvary.storage.untrusted_files import parse_json, read_file

Row = dict[str, Any]

FIVE = ("arc_challenge", "arc_easy", "hellaswag", "piqa", "winogrande")
"""Five tasks whose mean score is reported in papers."""
LARGEST_FILE = 2**28
_UNFINISHED = re.compile(r"(?<=[.!?]) ([^.!?]+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask:
    """A task of lm-eval and its local files.

    The fields of the local files differ from the fields of the files on the Hugging Face hub.
    """

    task: str
    config: str
    """The configuration file in lm-eval's folder of tasks."""
    evaluated: str
    shots: tuple[str, ...] = ()
    """Files of few-shot examples. The first existing one is used; if none exists, ``evaluated``."""
    convert: Callable[[Row], Row]
    """Converts a row of the local file to the fields that the prompts use."""
    usual_shots: int = 5
    is_processed: bool = False
    """Whether ``convert`` replaces the function ``process_docs`` of lm-eval's configuration."""

    def find_shots(self, folder: Path) -> str:
        """Return the file of the few-shot examples."""
        return next((file for file in self.shots if (folder / file).is_file()), self.evaluated)


def expand_tasks(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of tasks, each once. The name ``five`` stands for the tasks in ``FIVE``."""
    several = (FIVE if name == "five" else (name,) for name in names)
    return tuple(dict.fromkeys(chain.from_iterable(several)))


def read_rows(path: Path, convert: Callable[[Row], Row]) -> list[Row]:
    """Return the rows of a task's file, each converted by ``convert``."""
    lines = read_file(path, limit=LARGEST_FILE).split(b"\n")
    found: list[Row] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(convert(cast("Row", parse_json(line))))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise DamagedError(
                    f"{path}:{number} is not a question of this task: expected a JSON object "
                    "with the fields of the task"
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
    """Return the fields of a row as ``process_docs`` of lm-eval returns them.

    In the local copy, only the capital letter is missing: "... on a roof. he" becomes "... on a
    roof. He".
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
        task=name,
        config=f"arc/{name}.yaml",
        evaluated=f"{name}_test.jsonl",
        shots=(f"{name}_train.jsonl", f"{name}_validation.jsonl"),
        convert=_arc,
    )


LOCAL_TASKS: dict[str, LocalTask] = {
    "arc_easy": _name_arc("arc_easy"),
    "arc_challenge": _name_arc("arc_challenge"),
    "hellaswag": LocalTask(
        task="hellaswag",
        config="hellaswag/hellaswag.yaml",
        evaluated="hellaswag_validation.jsonl",
        shots=("hellaswag_train.jsonl",),
        convert=_hellaswag,
        is_processed=True,
    ),
    "piqa": LocalTask(
        task="piqa",
        config="piqa/piqa.yaml",
        evaluated="piqa_validation.jsonl",
        shots=("piqa_train.jsonl",),
        convert=_piqa,
    ),
    "winogrande": LocalTask(
        task="winogrande",
        config="winogrande/default.yaml",
        evaluated="winogrande_xl_validation.jsonl",
        shots=("winogrande_xl_train.jsonl",),
        convert=_winogrande,
    ),
    "lambada": LocalTask(
        task="lambada_openai",
        config="lambada/lambada_openai.yaml",
        evaluated="lambada_openai_test.jsonl",
        convert=_lambada,
        usual_shots=0,
    ),
}
