"""How long a person waits for the command line: whole processes, beside a bare interpreter.

CPU seconds of a process and whatever it starts, over the seconds that it may take. A line also says
whether torch was imported, which none of these may need.
"""

import functools
import os
import resource
import subprocess
import sys
from pathlib import Path

from timing.interleaved import Effort, print_case, read_effort, take_turns

FULL = Effort(rounds=25, turn_seconds=0.0)
QUICK = Effort(rounds=2, turn_seconds=0.0)
LIMITS_SECONDS = {"--help": 0.3, "--version": 0.3, "variants": 1.0, "studies": 1.0}
"""The first is the promise, the others are what feels immediate."""
SOURCE = Path(__file__).resolve().parents[1] / "src"
PROGRAM = "from qkvary.cli.main import run; run()"
BARE = "bare interpreter"


def run_python(*arguments: str) -> str:
    """Run an interpreter to its end and return what it wrote to standard error."""
    process = subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        env=dict(os.environ, PYTHONPATH=str(SOURCE)),
    )
    return process.stderr


def children_seconds() -> float:
    """CPU seconds of all processes that were started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def imports_torch(command: str) -> bool:
    """Whether torch is among the modules that a command imports."""
    imported = run_python("-X", "importtime", "-c", PROGRAM, command).splitlines()
    return any(line.rpartition("|")[2].strip() == "torch" for line in imported)


def main() -> None:
    """Measure all commands."""
    effort = read_effort(full=FULL, quick=QUICK)
    commands = {
        command: functools.partial(run_python, "-c", PROGRAM, command) for command in LIMITS_SECONDS
    }
    bare = {BARE: functools.partial(run_python, "-c", "pass")}
    timing = take_turns(commands | bare, effort, clock=children_seconds)
    for command, limit in LIMITS_SECONDS.items():
        print_case(
            "command_line",
            f"qkvary {command} over {limit} s",
            timing.over(command, limit),
            goal=1.0,
            better="lower",
            timing=timing,
            imports_torch=imports_torch(command),
        )


if __name__ == "__main__":
    main()
