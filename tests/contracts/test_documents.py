"""The Python that the guide shows runs as it stands."""

import inspect
import re
from pathlib import Path

import pytest

import qkvary as qk
from qkvary.api.verbs import TARGETS

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for number, block in enumerate(BLOCK.findall(page.read_text("utf-8")), start=1)
]


def test_there_are_examples() -> None:
    assert EXAMPLES


def test_the_notebook_uses_every_public_name() -> None:
    page = (ROOT / "docs/start/notebook.md").read_text("utf-8")
    assert [name for name in qk.__all__ if f"qk.{name}(" not in page] == []


def test_the_reference_has_every_public_name() -> None:
    """Verbs stand there by themselves."""
    pages = " ".join(path.read_text("utf-8") for path in (ROOT / "docs/reference").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)", pages, re.MULTILINE))
    assert "verbs" in shown
    verbs = {target.partition(":")[2] for target in TARGETS.values()}
    named = {name: getattr(qk, name).__module__ for name in {*qk.__all__} - verbs}
    assert [
        name for name, module in named.items() if not {module, f"{module}.{name}"} & shown
    ] == []


def test_the_arguments_of_a_layer_are_listed() -> None:
    page = (ROOT / "docs/guide/multihead.md").read_text("utf-8")
    _, _, table = page.partition("## The arguments")
    listed = re.findall(r"^\| `(\w+)`", table.partition("\n## ")[0], re.MULTILINE)
    taken = [*inspect.signature(qk.Attention.__init__).parameters]
    assert listed == [name for name in taken if name not in ("self", "config")]


@pytest.mark.parametrize("block", EXAMPLES)
def test_example_runs(block: str) -> None:
    exec(compile(block, "<example>", "exec"), {})  # noqa: S102 -- our own documents
