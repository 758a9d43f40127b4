"""Engines serve what is exported: equal greedy tokens over HTTP, the planned cache, its users.

``QKVARY_LLAMA_SERVER`` names llama-server and ``QKVARY_VLLM`` a Python that has vLLM.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.contracts.parsed import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

RUN = ROOT / "benchmarks" / "engines" / "serving.py"
PROGRAMS = {
    "--llama-server": ("QKVARY_LLAMA_SERVER", "llama-server"),
    "--vllm": ("QKVARY_VLLM", "vllm"),
}
VARIANTS = {"--llama-server": "Q-K=V", "--vllm": "Q-K=V@decoupled-64@kv-norm"}


@pytest.mark.parametrize("option", PROGRAMS)
def test_an_engine_serves_the_users_that_are_planned(option: str) -> None:
    variable, name = PROGRAMS[option]
    program = os.environ.get(variable) or shutil.which(name)
    if program is None:
        pytest.skip(f"no {name} on this machine; {variable} names one")
    call = [sys.executable, str(RUN), option, program, "--quick", "--variants", VARIANTS[option]]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (one for one in map(json.loads, done.stdout.splitlines()) if one["case"] == "serving")
    assert line["equal_tokens"] == line["tokens"]
    assert line["agrees"] is True
    assert line["users_in_64_mib"] == line["planned_users_in_64_mib"]
