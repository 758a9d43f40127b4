"""The wait for the command line: CPU time of whole processes, next to a bare interpreter.

CPU seconds of a process and whatever it starts, over the seconds that it may take; of the planner
also the seconds on the clock and the most memory that the process held, over their limits. A line
also says whether torch was imported, which none of these may need.
"""

import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from timing.interleaved import (
    Effort,
    median_with_interval,
    print_case,
    read_effort,
    take_turns,
)

FULL = Effort(rounds=25, turn_seconds=0.0)
QUICK = Effort(rounds=2, turn_seconds=0.0)
LIMITS_SECONDS = {"--help": 0.3, "--version": 0.3, "variants": 1.0, "studies": 1.0}
"""The first is the promise, the others are what feels immediate."""
PLANNER_SECONDS = 0.5
"""On the clock, for a local configuration."""
PLANNER_BYTES = 60 * 2**20
PLANNER = {
    "cost": ("cost", "{config}", "--context", "32k"),
    "plan": (
        *("plan", "{config}", "--gpu", "a100-80gb", "--context", "32k"),
        *("--users", "100", "--price", "2000"),
    ),
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
}
"""The sizes of Llama 3.1 8B."""
SOURCE = Path(__file__).resolve().parents[1] / "src"
PROGRAM = "from qkvary.cli.main import run; run()"
BARE = "bare interpreter"
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""The unit in which the system reports memory."""


def environment() -> dict[str, str]:
    """That of this process, with the package on the path."""
    return dict(os.environ, PYTHONPATH=str(SOURCE))


def run_python(*arguments: str) -> str:
    """Run an interpreter to its end and return what it wrote to standard error."""
    process = subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        env=environment(),
    )
    return process.stderr


def run_and_weigh(peaks: list[int], *arguments: str) -> None:
    """Run an interpreter to its end and note the most memory that it held, in bytes."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment()
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"expected exit code 0 of {arguments}, got {process.returncode}")
    peaks.append(usage.ru_maxrss * MAXRSS_BYTES)


def children_seconds() -> float:
    """CPU seconds of all processes that were started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def imports_torch(*command: str) -> bool:
    """Whether torch is among the modules that a command imports."""
    imported = run_python("-X", "importtime", "-c", PROGRAM, *command).splitlines()
    return any(line.rpartition("|")[2].strip() == "torch" for line in imported)


def measure_commands(effort: Effort) -> None:
    """CPU seconds of the commands that ask for little."""
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


def measure_planner(effort: Effort, config: Path) -> None:
    """Seconds on the clock and memory of the planning commands."""
    typed = {
        name: [word.format(config=config) for word in words] for name, words in PLANNER.items()
    }
    peaks: dict[str, list[int]] = {name: [] for name in typed}
    commands: dict[str, Callable[[], object]] = {
        name: functools.partial(run_and_weigh, peaks[name], "-c", PROGRAM, *words)
        for name, words in typed.items()
    }
    bare = {BARE: functools.partial(run_python, "-c", "pass")}
    timing = take_turns(commands | bare, effort, clock=time.perf_counter)
    for name, words in typed.items():
        torch_was_imported = imports_torch(*words)
        print_case(
            "command_line",
            f"qkvary {name} of a local configuration over {PLANNER_SECONDS} s on the clock",
            timing.over(name, PLANNER_SECONDS),
            goal=1.0,
            better="lower",
            timing=timing,
            imports_torch=torch_was_imported,
        )
        print_case(
            "command_line",
            f"qkvary {name} of a local configuration over {PLANNER_BYTES // 2**20} MiB",
            median_with_interval([peak / PLANNER_BYTES for peak in peaks[name]]),
            goal=1.0,
            better="lower",
            timing=timing,
            imports_torch=torch_was_imported,
            peak_mebibytes=round(max(peaks[name]) / 2**20, 1),
        )


def main() -> None:
    """Measure all commands."""
    effort = read_effort(full=FULL, quick=QUICK)
    measure_commands(effort)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIG), "utf-8")
        measure_planner(effort, config)


if __name__ == "__main__":
    main()
