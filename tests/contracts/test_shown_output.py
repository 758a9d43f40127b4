"""What the guide shows as output is what the commands print."""

import re
import shlex
from pathlib import Path

import pytest

from qkvary.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```console\n\$ (qkvary [^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COLUMNS = "136"
SHOWN = [
    pytest.param(command, output, id=command)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for command, output in BLOCK.findall(page.read_text("utf-8"))
]


def print_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints into 136 columns, ends of lines without spaces."""
    assert main(shlex.split(command)[1:]) == 0
    return "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())


def test_there_are_outputs() -> None:
    assert SHOWN


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_output_is_what_is_printed(
    command: str,
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", COLUMNS)
    monkeypatch.chdir(ROOT)
    assert print_of(command, capsys) == output
