"""What is kept of the claims is what follows from the tables of the studies."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.studies_scripts.loading import STUDIES, load_script

script = load_script("claims", "make")


def test_the_page_and_the_packaged_figures_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_lines_lead_to_the_pages_of_studies() -> None:
    folder = STUDIES / "claims"
    found = re.findall(r"\]\((\.\./[^)]*)\)", (folder / "README.md").read_text("utf-8"))
    found += re.findall(r'href="(\.\./[^"]*)"', (folder / "report.html").read_text("utf-8"))
    assert len(found) > 100
    assert all((folder / link).is_file() for link in set(found))


def test_no_cell_is_longer_than_a_paragraph() -> None:
    rows = (STUDIES / "claims" / "README.md").read_text("utf-8").splitlines()
    cells = [cell for row in rows if row.startswith("| ") for cell in row.split(" | ")]
    assert len(cells) > 600
    assert max(map(len, cells)) < 1150


def test_a_file_that_does_not_follow_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = STUDIES / "claims" / "README.md"

    def other_files(_: Path) -> Iterator[tuple[Path, bytes]]:
        yield readme, b"something else"

    monkeypatch.setattr(script, "page_files", other_files)
    assert script.main(["--check"]) == 1
    assert capsys.readouterr().out == "studies/claims/README.md does not follow any more\n"
