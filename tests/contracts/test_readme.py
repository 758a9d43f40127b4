"""The commands that the documents show exist and are understood; the files they name are there."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from qkvary.cli.app import build_app
from qkvary.cli.main import command_names

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def shown(program: str) -> list[str]:
    """The command lines of a program in the shell blocks of all documents."""
    lines = [
        line.split("#")[0].removeprefix("$ ").strip()
        for document in DOCUMENTS
        for block in BLOCK.findall(document.read_text("utf-8"))
        for line in block.splitlines()
    ]
    return sorted({line for line in lines if line.split(" ")[0] == program})


def test_shown_commands_are_understood() -> None:
    app = build_app()
    for line in shown("qkvary"):
        words = shlex.split(line)[1:]
        assert words[0] in command_names()
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        assert callable(command), line
        assert bound is not None, line


def test_shown_targets_are_made() -> None:
    for line in shown("make"):
        result = subprocess.run(
            ["make", "--dry-run", "--no-print-directory", *shlex.split(line)[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (result.returncode, result.stderr) == (0, ""), line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = [document.parent / target for target in LINK.findall(document.read_text("utf-8"))]
    assert [str(target) for target in targets if not target.exists()] == []


def test_the_first_two_commands_come_first() -> None:
    first = BLOCK.findall((ROOT / "README.md").read_text("utf-8"))[0]
    assert [line.split("#")[0].strip() for line in first.splitlines()] == [
        "make study",
        "make test",
    ]
