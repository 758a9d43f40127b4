"""What is kept of the claims is what follows from the tables of the studies."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.studies_scripts.loading import STUDIES, load_script

script = load_script("claims", "make")


def test_the_page_and_the_packaged_figures_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_records_are_links() -> None:
    records = (
        "studies/ours/lm-small/README.md",
        "pytest tests/nn/test\\_a.py::test\\_b",
        "qkvary published poster-1.2b",
    )
    text = f"It is {'; '.join(records)}."
    for name, form in script.LINKS.items():
        assert script.RECORD.sub(partial(script.link, form), text) == text.replace(
            records[0], form.format("studies/ours/lm-small", "../ours/lm-small/README.md")
        ).replace(records[1], form.format(records[1], "../../tests/nn/test_a.py")).replace(
            records[2], form.format(records[2], "../../docs/reproduce.md")
        ), name


def test_lines_lead_to_their_records() -> None:
    folder = STUDIES / "claims"
    found = re.findall(r"\]\((\.\./[^)]*)\)", (folder / "README.md").read_text("utf-8"))
    found += re.findall(r'href="(\.\./[^"]*)"', (folder / "report.html").read_text("utf-8"))
    assert len(found) > 100
    assert all((folder / link).is_file() for link in set(found))


def test_no_cell_is_longer_than_a_paragraph() -> None:
    rows = (STUDIES / "claims" / "README.md").read_text("utf-8").splitlines()
    words = [re.sub(r"\]\([^)]*\)", "]", row) for row in rows if row.startswith("| ")]
    cells = [cell for row in words for cell in row.split(" | ")]
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
