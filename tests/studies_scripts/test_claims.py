"""What is kept of the claims is what follows from the tables of the studies."""

import re

import pytest

from tests.studies_scripts.loading import STUDIES, load_script

script = load_script("claims", "make")


def test_the_page_and_the_packaged_figures_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_lines_lead_to_their_records() -> None:
    folder = STUDIES / "claims"
    found = re.findall(r"\]\((\.\./[^)]*)\)", (folder / "README.md").read_text("utf-8"))
    found += re.findall(r'href="(\.\./[^"]*)"', (folder / "report.html").read_text("utf-8"))
    assert len(found) > 100
    assert all((folder / link).is_file() for link in set(found))
