"""README and documentation are right: links, commands and their output, Python examples."""

import inspect
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import qkvary as qk
from qkvary.api.verbs import TARGETS
from qkvary.cli.app import build_app
from qkvary.cli.main import command_names
from tests.conftest import Typed
from tests.contracts.parsed import ROOT
from tests.contracts.test_commands import leave_out_pictures

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {path: path.read_text("utf-8") for path in DOCUMENTS}
SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^```console\n\$ (qkvary [^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    *DOCUMENTS,
    ROOT / "studies/README.md",
    *sorted((ROOT / "src/qkvary/papers").glob("*/README.md")),
]
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
OUTPUTS = [
    pytest.param(command, output, id=command)
    for text in TEXTS.values()
    for command, output in PRINTED.findall(text)
]
EXAMPLES = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path, text in TEXTS.items()
    for number, block in enumerate(PYTHON.findall(text), start=1)
]


def shown(program: str) -> list[str]:
    """The command lines of a program in the shell blocks of all documents."""
    lines = [
        line.split("#")[0].removeprefix("$ ").strip()
        for text in TEXTS.values()
        for block in SHELL.findall(text)
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
    targets = sorted({target for line in shown("make") for target in shlex.split(line)[1:]})
    command = ["make", "--dry-run", "--no-print-directory", *targets]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_links_lead_somewhere() -> None:
    targets = {
        path.parent / link for path in PAGES for link in LINK.findall(path.read_text("utf-8"))
    }
    assert [str(target) for target in targets if not target.exists()] == []


def test_links_lead_to_a_heading() -> None:
    """The anchors of headings are those of GitHub and MkDocs."""
    missing = [
        f"{page.relative_to(ROOT)}: {link}#{anchor}"
        for page in PAGES
        for link, anchor in ANCHOR.findall(page.read_text("utf-8"))
        if anchor not in heading_names(page.parent / link if link else page)
    ]
    assert missing == []


def heading_names(page: Path) -> set[str]:
    titles = HEADING.findall(page.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_the_first_two_commands_come_first() -> None:
    first = SHELL.findall(TEXTS[ROOT / "README.md"])[0]
    assert [line.split("#")[0].strip() for line in first.splitlines()] == [
        "make study",
        "make test",
    ]


@pytest.mark.parametrize(("command", "output"), OUTPUTS)
def test_output_is_what_is_printed(
    command: str, output: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into 136 columns, ends of lines without spaces."""
    monkeypatch.setenv("COLUMNS", "136")
    monkeypatch.chdir(ROOT)
    printed = typed(*shlex.split(command)[1:]).splitlines()
    assert "".join(f"{line.rstrip()}\n" for line in printed) == output


def test_the_notebook_uses_every_public_name() -> None:
    page = TEXTS[ROOT / "docs/start/notebook.md"]
    assert [name for name in qk.__all__ if f"qk.{name}(" not in page] == []


def test_the_reference_has_every_public_name() -> None:
    """Verbs stand there by themselves."""
    pages = " ".join(path.read_text("utf-8") for path in (ROOT / "docs/reference").glob("*.md"))
    named_there = set(re.findall(r"^::: (\S+)", pages, re.MULTILINE))
    assert "verbs" in named_there
    verbs = {target.partition(":")[2] for target in TARGETS.values()}
    named = {name: getattr(qk, name).__module__ for name in {*qk.__all__} - verbs}
    assert [
        name for name, module in named.items() if not {module, f"{module}.{name}"} & named_there
    ] == []


def test_the_arguments_of_a_layer_are_listed() -> None:
    _, _, table = TEXTS[ROOT / "docs/guide/multihead.md"].partition("## The arguments")
    listed = re.findall(r"^\| `(\w+)`", table.partition("\n## ")[0], re.MULTILINE)
    taken = [*inspect.signature(qk.Attention.__init__).parameters]
    assert listed == [name for name in taken if name not in ("self", "config")]


@pytest.mark.parametrize("block", EXAMPLES)
def test_example_runs(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_pictures(monkeypatch)
    exec(compile(block, "<example>", "exec"), {})  # noqa: S102 -- our own documents
