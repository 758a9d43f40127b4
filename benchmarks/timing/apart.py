"""Alternatives in processes of their own, which still take turns.

One process that runs all of them shares an allocator: what one has freed another takes, and the
order decides who pays for fresh pages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path


class Apart:
    """One alternative: a call is a turn over there."""

    def __init__(self, *arguments: str) -> None:
        """Start the running benchmark again, which answers with ``serve``.

        Args:
            arguments: What it is given, so that it knows what to do.
        """
        path = os.pathsep.join(place for place in sys.path if place)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(sys.argv[0]).resolve()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self.seconds = 0.0

    def __call__(self) -> float:
        """Take a turn and return its value."""
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            raise RuntimeError("expected a process with pipes")
        requests.write("\n")
        requests.flush()
        value, seconds = json.loads(answers.readline())
        self.seconds += seconds
        return value

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def clock_of(alternatives: Iterable[Apart]) -> Callable[[], float]:
    """CPU seconds of all turns together."""
    known = list(alternatives)
    return lambda: sum(one.seconds for one in known)


def serve(work: Callable[[], float]) -> None:
    """Take a turn whenever the process that asked wants one."""
    for _ in sys.stdin:
        start = time.process_time()
        value = work()
        print(json.dumps([value, time.process_time() - start]), flush=True)
