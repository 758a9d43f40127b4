"""The package says the same about itself everywhere, and every extra is installed and tried."""

import importlib.util
import re
import tomllib
from pathlib import Path

from tests.contracts.parsed import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


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
