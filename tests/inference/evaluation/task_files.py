"""A few questions of every task with local copies, and tasks of lm-eval made for a test."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ARC = [
    {
        "id": f"q{number}",
        "question": f"What is {number} and {number}?",
        "choices": {
            "text": [str(2 * number + one) for one in range(choices)],
            "label": list("ABCDE")[:choices],
        },
        "answerKey": "ABC"[number % 3],
    }
    for number, choices in enumerate((4, 4, 3, 5, 4, 4), start=1)
]
HELLASWAG = [
    {
        "query": "Roof shingle removal: A man is sitting on a roof. he",
        "choices": [
            "is using wrap to wrap a pair of skis.",
            "is ripping level tiles off.",
            "is holding a rubik's cube.",
            "starts pulling up roofing on a roof.",
        ],
        "gold": 3,
    },
    {
        "query": "Clean and jerk: She bends down and grabs the pole. the lady",
        "choices": ["swings.", "pulls the barbell forward.", "pulls a rope.", "stands."],
        "gold": 3,
    },
    {
        "query": "Youth: How to go. Take a bus. Buy it before it leaves.",
        "choices": ["Pay.", "Run.", "Wait there.", "Go home again."],
        "gold": 0,
    },
]
PIQA = [
    {"goal": "dresser", "sol1": "replace drawer ", "sol2": "finish with  pin ", "label": 1},
    {"goal": "Brown sausages.", "sol1": "In a pan.", "sol2": "In a cup.", "label": 0},
    {"goal": "How do I rest?", "sol1": "Lie down.", "sol2": "Run.", "label": 0},
]
WINOGRANDE = [
    {"sentence": sentence, "option1": first, "option2": second, "answer": answer}
    for sentence, first, second, answer in (
        ("Sarah was a better surgeon than Maria so _ got the easier cases.", "Sarah", "Maria", "2"),
        ("The wine was near the bed and blanket, but the _ was dry.", "blanket", "bed", "2"),
        ("Ian laughs at Ryan because of the tree _ picked.", "Ian", "Ryan", "1"),
    )
]
LAMBADA = [
    {"context": "In my palm is a stone.\n\nI don't care about", "continuation": "signs"},
    {
        "context": 'He said, "'
        + "Go down the hill, past the mill and over the bridge. " * 3
        + "Then",
        "continuation": "stop",
    },
]
FILES: dict[str, list[dict[str, Any]]] = {
    "arc_easy_test.jsonl": ARC,
    "arc_easy_validation.jsonl": ARC[::-1],
    "arc_challenge_test.jsonl": ARC[1:],
    "arc_challenge_validation.jsonl": ARC,
    "hellaswag_validation.jsonl": HELLASWAG,
    "piqa_validation.jsonl": PIQA,
    "winogrande_xl_validation.jsonl": WINOGRANDE,
    "lambada_openai_test.jsonl": LAMBADA,
}


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def write_task_files(folder: Path) -> Path:
    """All of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in FILES.items():
        write_rows(folder / name, rows)
    return folder


ROWS: list[dict[str, Any]] = [
    {"question": "one and one", "choices": ["two", "three", "a hundred"], "right": 0},
    {"question": "sky", "choices": ["green", "blue"], "right": 1},
    {"question": "water", "choices": ["wet", "dry", "loud", "old"], "right": 0},
]
TASKS = {
    "choosing": """
output_type: multiple_choice
doc_to_text: "Q: {{question}} A:"
doc_to_choice: "{{choices}}"
doc_to_target: right
metric_list: [{metric: acc}]
""",
    "reading": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: byte_perplexity}]
""",
    "writing": """
output_type: generate_until
doc_to_text: "Q: {{question}}"
doc_to_target: "{{written}}"
generation_kwargs: {until: ["@"], max_gen_toks: 7, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


def write_stock_tasks(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the questions, and a file for each task in the format of lm-eval."""
    write_rows(folder / "rows.jsonl", rows)
    for name, config in TASKS.items():
        data = f"dataset_kwargs: {{data_files: {{test: {folder / 'rows.jsonl'}}}}}\n"
        head = f"task: {name}\ndataset_path: json\ntest_split: test\n{data}"
        (folder / f"{name}.yaml").write_text(f"{head}{config.strip()}\n")
