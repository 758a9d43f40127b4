"""The package says the same about itself everywhere, and every extra is installed and tried."""

import re
import runpy
import tomllib

from tests.contracts.parsed import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [PROJECT["version"]]


def test_every_extra_and_every_listed_python_is_tried() -> None:
    packages = runpy.run_path(str(ROOT / ".ci" / "packages.py"))
    tried = {extra for extras in packages["EXTRAS"] for extra in extras.split(",")}
    assert tried == set(PROJECT["optional-dependencies"])
    found = (re.fullmatch(r".* (3\.\d+)", line) for line in PROJECT["classifiers"])
    assert tuple(f"python{match[1]}" for match in found if match) == packages["PYTHONS"]
