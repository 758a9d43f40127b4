"""How long a person waits for the command line: processor seconds of a process, median of rounds.

Prints one JSON line per case; ``ratio`` is the time over the goal.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
PROGRAM = "from qkvary.cli.main import run; run()"
GOALS = {"--help": 0.3, "--version": 0.3, "variants": 1.0, "studies": 1.0}
"""Seconds; the first is the promise, the others are what feels immediate."""


def children_seconds() -> float:
    """Processor seconds of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(arguments: list[str], rounds: int) -> list[float]:
    """Run one command some times and return the seconds of each."""
    environment = dict(os.environ, PYTHONPATH=str(SOURCE))
    found: list[float] = []
    for _ in range(rounds):
        before = children_seconds()
        subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        found.append(children_seconds() - before)
    return found


def main() -> None:
    """Measure every case and print its line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of fifteen")
    rounds = 3 if parser.parse_args().quick else 15
    for case, goal in GOALS.items():
        measure([case], 1)
        seconds = measure([case], rounds)
        median = statistics.median(seconds)
        line = {
            "benchmark": "command_line",
            "case": f"qkvary {case}",
            "ratio": round(median / goal, 3),
            "goal": 1.0,
            "better": "lower",
            "seconds": round(median, 4),
            "goal_seconds": goal,
            "lowest_seconds": round(min(seconds), 4),
            "rounds": rounds,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
