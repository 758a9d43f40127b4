"""The package says the same about itself everywhere, and every extra is installed and tried."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FIND_HUGE_PAGES = """
from pathlib import Path
import qkvary
import torch
kept = torch.ones(2**24)
usage = Path("/proc/self/smaps_rollup")
lines = usage.read_text("utf-8").splitlines() if usage.exists() else []
print(sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")))
"""


def test_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [PROJECT["version"]]


def test_every_extra_and_every_listed_python_is_tried() -> None:
    spec = importlib.util.spec_from_file_location("packages", ROOT / ".ci" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tried = {extra for extras in module.EXTRAS for extra in extras.split(",")}
    assert tried == set(PROJECT["optional-dependencies"])
    found = (re.fullmatch(r".* (3\.\d+)", line) for line in PROJECT["classifiers"])
    assert tuple(f"python{match[1]}" for match in found if match) == module.PYTHONS


def test_large_tensors_lie_in_huge_pages_where_the_system_offers_them() -> None:
    offered = HUGE_PAGES.exists() and "[never]" not in HUGE_PAGES.read_text("utf-8")
    command = [sys.executable, "-c", FIND_HUGE_PAGES]
    kibibytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Of 64 MiB; memory may be fragmented.
    assert (int(kibibytes) >= 2**14) == offered
