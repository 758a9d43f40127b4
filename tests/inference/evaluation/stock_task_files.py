"""Task files in the format of lm-eval, with questions on this disk."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    """Write the questions, and a file for each task."""
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, config in TASKS.items():
        data = f"dataset_kwargs: {{data_files: {{test: {folder / 'rows.jsonl'}}}}}\n"
        head = f"task: {name}\ndataset_path: json\ntest_split: test\n{data}"
        (folder / f"{name}.yaml").write_text(f"{head}{config.strip()}\n")
