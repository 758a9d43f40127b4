"""The contracts on a fake device, in a separate process.

Once autograd has run on a second device, a process cannot fork others that use autograd, and the
workers of this suite fork many.
"""

import os
import subprocess
import sys

import pytest

from tests.contracts.parsed import ROOT

FILES = sorted(map(str, (ROOT / "tests" / "contracts").glob("on_fake_device*.py")))


@pytest.mark.timeout(900)
def test_what_computes_on_a_device_stays_there() -> None:
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *FILES],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-8_000:]
    assert " passed" in ended.stdout.splitlines()[-1]
    assert "skipped" not in ended.stdout.splitlines()[-1]
