"""Everything that needs a GPU, in the order of its value: tests, decoding, training, a ladder.

    make gpu                                                    # ten minutes on one H100
    python benchmarks/gpu/run.py --device cpu --quick --out DIR # shows that it works

Each part has a limit. Records are JSON lines in the folder; cases that are there are not measured
again, so the same command goes on where it was stopped. ``page.py`` makes the page of them.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from records import Records

from qkvary.storage.environment import machine, package_version

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GRACE_SECONDS = 12
"""Time for a part to store what it has before it is killed."""
WORKERS = max(1, min(12, (os.cpu_count() or 2) - 2))
"""Processes of the tests: they wait for Python more than for the GPU."""
STUDY = "lm-ladder"
RUNGS = {"1M": 50, "3M": 90, "10M": 900, "30M": 7_200}
"""Settings of the ladder with their limits in seconds."""
LONG = ("ladder 10M", "ladder 30M")
"""Parts that run only where they are named."""
TESTS = (
    "tests/inference/test_graph_step.py",
    "tests/contracts/test_on_gpu.py",
    "tests/training/test_on_gpu.py",
    "tests/nn/decoding/test_triton_on_gpu.py",
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part with its command and its limit."""

    name: str
    command: tuple[str, ...]
    seconds: int
    environment: tuple[tuple[str, str], ...] = ()


def main() -> None:
    """Run the parts."""
    options = read_options()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "expected a GPU that torch can use, got none: run this on a machine with one and with "
            "a CUDA build of torch, or try it with --device cpu --quick"
        )
    records = Records(options.out)
    records.add("environment", **describe(device, options.commit), quick=options.quick)
    parts = make_parts(options, options.out.resolve())
    for part in parts:
        if part.name in options.part or not (options.part or part.name in LONG):
            run(part, options.out, records.add)
            if part.name == "tests":
                add_tests(records, options.out / "tests.xml")


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--quick", action="store_true", help="toy sizes: shows that it works")
    parser.add_argument("--part", action="append", default=[], help="only this part; repeatable")
    parser.add_argument("--workers", type=int, default=4, help="runs of the ladder at once")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all limits")
    parser.add_argument("--commit", help="the commit of the sources, where git cannot say it")
    return parser.parse_args()


def describe(device: torch.device, commit: str | None) -> dict[str, object]:
    """Return what the figures were measured on."""
    found: dict[str, object] = {**machine(), "triton": package_version("triton")}
    if commit:
        found["commit"] = commit
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return found


def make_parts(options: argparse.Namespace, out: Path) -> list[Part]:
    """Return the parts in their order."""
    quick = ("--quick",) if options.quick else ()
    given = ("--device", options.device, "--out", str(out), *quick)
    study = str(HERE / "quick_ladder.py") if options.quick else STUDY
    qkvary = (sys.executable, "-c", "from qkvary.cli.main import run; run()")
    ladder = (study, "--device", options.device, "--out", str(out / "runs"))
    tests = (
        sys.executable,
        *("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--timeout", "80"),
        # With it, and with several processes, pytest ends at its warning.
        *("-p", "no:benchmark"),
        *("-n", "0" if options.quick else str(WORKERS), "--dist", "worksteal"),
        *(("--collect-only",) if options.quick else (f"--junitxml={out / 'tests.xml'}",)),
        *TESTS,
    )

    def limit(seconds: int) -> int:
        return round(seconds * options.scale)

    return [
        Part("tests", tests, limit(80), (("TRITON_INTERPRET", "0"),)),
        Part("cuts", (sys.executable, str(HERE / "cuts.py"), *given), limit(35)),
        Part("decoding", (sys.executable, str(HERE / "decoding.py"), *given), limit(110)),
        Part("training", (sys.executable, str(HERE / "training.py"), *given), limit(110)),
        *(
            Part(
                f"ladder {rung}",
                (*qkvary, "study", *ladder, "--setting", rung, "--workers", str(options.workers)),
                limit(seconds),
            )
            for rung, seconds in RUNGS.items()
            if rung == "1M" or not options.quick
        ),
        Part("pack", (*qkvary, "pack", study, str(out / "ladder.jsonl.xz"), *ladder[1:]), 20),
    ]


def run(part: Part, out: Path, add: Callable[..., None]) -> None:
    """Run a part in a process of its own; at its limit it may store what it has."""
    start = time.perf_counter()
    log = out / f"{part.name.replace(' ', '-')}.log"
    environment = {**os.environ, **dict(part.environment)}
    paths = (str(ROOT / "src"), str(HERE.parent), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with log.open("w") as file:
        process = subprocess.Popen(
            part.command,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        ended = wait(process, part.seconds)
    text = log.read_text("utf-8", errors="replace")
    print(text[-4_000:], flush=True)
    add(
        "part",
        name=part.name,
        seconds=round(time.perf_counter() - start, 1),
        limit=part.seconds,
        ended=ended,
        code=process.returncode,
        tail="" if process.returncode == 0 else text[-2_000:],
    )


def wait(process: "subprocess.Popen[bytes]", seconds: int) -> str:
    """Wait for a process and all it started; return how it ended."""
    for number, patience in ((None, seconds), (signal.SIGINT, GRACE_SECONDS), (signal.SIGKILL, 30)):
        if number is not None:
            os.killpg(process.pid, number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        return {None: "done", signal.SIGINT: "at its limit"}.get(number, "killed at its limit")
    return "not ended"


def add_tests(records: Records, path: Path) -> None:
    """Append the number of tests that passed and the names of others; not those cut off."""
    if not path.exists():
        return
    # Written by pytest a moment ago.
    cases = ET.parse(path).getroot().iter("testcase")  # noqa: S314
    outcomes = {
        f"{case.get('classname')}::{case.get('name')}": sorted({child.tag for child in case})
        for case in cases
        if float(case.get("time", 0)) > 0
    }
    failed = [name for name, tags in outcomes.items() if {"failure", "error"} & {*tags}]
    skipped = [name for name, tags in outcomes.items() if "skipped" in tags]
    records.add(
        "tests",
        passed=len(outcomes) - len(failed) - len(skipped),
        failed=failed,
        skipped=skipped,
    )


if __name__ == "__main__":
    main()
