"""The progress of a preparation, for ``train``."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from qkvary.cli._output import ProgressLine, console
from qkvary.data.preparation import Progress
from qkvary.text.units import duration


@contextmanager
def show_preparation() -> Generator[Callable[[Progress], None]]:
    """Show the progress of a preparation."""
    start = time.monotonic()
    line = ProgressLine(console(sys.stderr), start)
    try:
        yield lambda progress: line.show(
            lambda: describe_progress(progress, time.monotonic() - start)
        )
    finally:
        line.clear()


def describe_progress(progress: Progress, seconds: float) -> str:
    """Return share, counts, rate and remaining time in words."""
    rate = (progress.text_bytes - progress.resumed_bytes) / max(seconds, 1e-9)
    parts = [
        f"{progress.documents:,} documents",
        f"{progress.tokens:,} tokens",
        f"{rate / 1e6:.1f} MB/s",
    ]
    if progress.total_bytes:
        share = min(1.0, progress.text_bytes / progress.total_bytes)
        parts.insert(0, f"{share:.0%}")
        left = (progress.total_bytes - progress.text_bytes) / rate if rate else None
        if left is not None and left >= 0:
            parts.append(f"{duration(left, 2)} left")
    return ", ".join(parts)
