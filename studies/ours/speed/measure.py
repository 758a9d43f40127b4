"""Runs the benchmarks of steps, loading, decoding and published sizes, and writes this folder.

python studies/ours/speed/measure.py           # an hour, on a machine that does nothing else
python studies/ours/speed/measure.py --kept    # writes the page again from measured.jsonl
python studies/ours/speed/measure.py --to studies/ours/speed/epyc    # the record of another machine
python studies/ours/speed/measure.py --only step_decoding    # the other benchmarks are kept

Loading is measured where the image sets are on the machine (``QKVARY_DATA``), and llama.cpp where
``--llama-python`` names a Python that has it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkvary.papers.script_figures import describe_environment
from qkvary.reports.markdown import table_markdown
from qkvary.storage.durable import atomic_write_file
from qkvary.storage.environment import machine

FOLDER = Path(__file__).parent
BENCHMARKS = FOLDER.parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
from timing.cases import make_table  # noqa: E402

TITLES = {
    "linear_attention": "Linear attention beside the softmax",
    "vision_step": "A training step of the vision transformer, and its loading",
    "translation": "A training step of the encoder-decoder, and decoding with a cache",
    "language_training": "A training step of a language model",
    "step_decoding": "A decoded token, and the rate of the memory",
    "published_model": "Published sizes, beside transformers and llama.cpp",
}
PAGE = """# Steps, loading and decoding: this project beside torch's own layers and other programs

Ratios of the time of one thread, where a case says nothing else, within rounds that take turns: the
median, and order statistics that hold 95 %. A goal is met unless the whole interval lies beyond it.
*Loading over ours* is the share of a step. A decoded token is compared by the times of the softmax
over those of linear attention, and translations by those without a cache over those with one.

`python studies/ours/speed/measure.py` measures again. [measured.jsonl](measured.jsonl) has every
line that the benchmarks printed, with medians in seconds and the versions.

"""


def measure(names: Sequence[str], llama_python: Path | None) -> list[Mapping[str, Any]]:
    """Run benchmarks; return the lines that they print, each with the commit."""
    lines: list[Mapping[str, Any]] = []
    for name in names:
        command = [sys.executable, f"{name}.py"]
        if llama_python and name == "published_model":
            command += ["--llama-python", str(llama_python)]
        done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=True)
        commit = machine()["commit"]
        lines += [{**json.loads(line), "commit": commit} for line in done.stdout.splitlines()]
    return lines


def make_page(environment: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: a table for each benchmark."""
    page = PAGE + describe_environment(environment) + ".\n"
    for name, title in TITLES.items():
        own = [line for line in lines if line["benchmark"] == name]
        page += "\n" + table_markdown(make_table(name, title, own))
        commits = {line.get("commit", environment["commit"]) for line in own}
        if commits - {environment["commit"]}:
            page += f"\nMeasured later, at commit {', '.join(sorted(commits))}.\n"
    return page


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kept", action="store_true", help="measure nothing")
    parser.add_argument("--llama-python", type=Path, help="a Python that has llama-cpp-python")
    parser.add_argument("--only", nargs="+", choices=TITLES, default=tuple(TITLES))
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of the record and its page")
    given = parser.parse_args(arguments)
    kept = given.to / "measured.jsonl"
    if not given.kept:
        known = kept.read_text("utf-8").splitlines() if set(given.only) < set(TITLES) else []
        environment, *others = map(json.loads, known) if known else [machine()]
        lines = [line for line in others if line["benchmark"] not in given.only]
        lines = [environment, *lines, *measure(given.only, given.llama_python)]
        given.to.mkdir(parents=True, exist_ok=True)
        atomic_write_file(kept, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    environment, *found = map(json.loads, kept.read_text("utf-8").splitlines())
    atomic_write_file(given.to / "README.md", make_page(environment, found).encode())


if __name__ == "__main__":
    main()
