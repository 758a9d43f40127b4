"""The contracts on a fake device, each file in a separate process.

Once autograd has run on a second device, a process cannot fork others that use autograd, and the
workers of this suite fork many.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.parsed import ROOT
from tests.forked import ForkedPython

FILES = sorted((ROOT / "tests" / "contracts").glob("on_fake_device*.py"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_computes_on_a_device_stays_there(path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    process = ForkedPython(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(path)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    printed, _ = process.communicate()
    assert process.returncode == 0, printed[-8_000:]
    assert " passed" in printed.splitlines()[-1]
    assert "skipped" not in printed.splitlines()[-1]
