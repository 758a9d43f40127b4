"""The time and the environment: versions, platform, processor, names of devices. Torch-free."""

import functools
import os
import platform
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from qkvary.storage.errors import UsageError


def check_device(device: str) -> None:
    """Refuse an invalid name of a device; whether this machine has it is checked where it is used.

    Raises:
        UsageError: for an invalid name.
    """
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]{1,3})?", device):
        raise UsageError(f"expected a device such as cpu, cuda, cuda:1 or mps, got {device!r}")


@contextmanager
def without_downloads() -> Generator[None]:
    """Let nothing be downloaded inside the block, as with ``HF_HUB_OFFLINE``."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def now() -> str:
    """Return the current time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def package_version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the commit of the source checkout, with a plus if it has changes."""
    source = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "-C", str(source), "describe", "--always", "--abbrev=40", "--dirty=+"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


@functools.cache
def machine() -> dict[str, Any]:
    """Return the environment of this process."""
    return {
        "qkvary": package_version("qkvary"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
    }
