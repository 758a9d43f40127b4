"""Print every command of the guide again and put what it prints into its block.

Run from the root of the repository: ``python docs/refresh_examples.py``. The tests hold the blocks
equal to what the commands print, so this is for changes that are meant.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```console\n\$ (qkvary [^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAM = "from qkvary.cli.main import run; run()"


def print_again(match: re.Match[str]) -> str:
    """The block of one command with its output as it is now."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, *shlex.split(match[1])[1:]],
        cwd=ROOT,
        env=dict(os.environ, COLUMNS="136", PYTHONPATH=str(ROOT / "src")),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = "".join(f"{line.rstrip()}\n" for line in process.stdout.splitlines())
    return f"```console\n$ {match[1]}\n{lines}```"


def main() -> None:
    """Refresh all pages of the guide."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text("utf-8")
        page.write_text(BLOCK.sub(print_again, text), "utf-8")


if __name__ == "__main__":
    main()
