"""A few questions of every task, in the fields of the local copies; small enough for a test."""

import json
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
    {
        "sentence": "Sarah was a better surgeon than Maria so _ got the easier cases.",
        "option1": "Sarah",
        "option2": "Maria",
        "answer": "2",
    },
    {
        "sentence": "The wine was near the bed and the blanket, but the _ was dry.",
        "option1": "blanket",
        "option2": "bed",
        "answer": "2",
    },
    {
        "sentence": "Ian laughs at Ryan because of the tree _ picked.",
        "option1": "Ian",
        "option2": "Ryan",
        "answer": "1",
    },
]
LAMBADA = [
    {"context": "In my palm is a stone.\n\nI don't care about", "continuation": "signs"},
    {"context": 'He said, "Go to the', "continuation": "docks"},
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


def write_task_files(folder: Path) -> Path:
    """All of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in FILES.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text(lines, "utf-8")
    return folder
