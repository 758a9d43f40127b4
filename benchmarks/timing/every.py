"""Runs every benchmark and ends with one table: case, ratio, goal, and whether it is met.

python benchmarks/timing/every.py            # as `make bench`; minutes
python benchmarks/timing/every.py --quick    # shows that all of them work

A benchmark whose optional part is not installed says so in one line, and the next one runs. One
that fails is shown with its error; then the exit code is 1.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkvary.reports.markdown import table_markdown
from timing.cases import make_table

FOLDER = Path(__file__).parents[1]
MISSING = re.compile(
    r"^(?:ModuleNotFoundError: .*|[\w.]*Error: .* is not installed.*)$", re.MULTILINE
)


def run(path: Path, arguments: Sequence[str]) -> tuple[list[Mapping[str, Any]], str, int]:
    """Run a benchmark; return the lines it prints, which are shown too, its errors and its code."""
    lines: list[Mapping[str, Any]] = []
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, str(path), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                lines += [json.loads(line)] if line.startswith("{") else []
        errors.seek(0)
        return lines, errors.read(), process.returncode


def main(arguments: Sequence[str]) -> int:
    """Run all of them; return the exit code."""
    found: list[Mapping[str, Any]] = []
    failed = False
    for path in sorted(FOLDER.glob("*.py")):
        lines, said, code = run(path, arguments)
        found += lines
        missing = MISSING.findall(said) if code else []
        if missing:
            print(f"{path.name} is left out: {missing[-1]}", file=sys.stderr)
        else:
            print(said, end="", file=sys.stderr)
            failed |= code != 0
    print("\n" + table_markdown(make_table("cases", "All cases", found)).rstrip())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
