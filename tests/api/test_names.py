"""The names of ``import qkvary as qk``: what they load, and that editors know them."""

import ast
from pathlib import Path

import pytest

import qkvary as qk
from tests.api.typed_use import use_names
from tests.contracts.parsed import ROOT, nodes_of, python_files


def test_every_name_is_found_and_listed() -> None:
    for name in qk.__all__:
        assert getattr(qk, name).__name__ == name
        assert getattr(qk, name).__doc__
    assert set(qk.__all__) <= set(dir(qk))
    with pytest.raises(
        AttributeError, match="module 'qkvary' has no attribute 'costs_of'"
    ) as found:
        qk.costs_of  # type: ignore[attr-defined]  # noqa: B018
    assert (found.value.name, found.value.obj) == ("costs_of", qk)


def test_editors_see_the_names_that_are_loaded() -> None:
    """The imports for type checkers name the modules from which the names are loaded."""
    source = ROOT / "src/qkvary/__init__.py"
    imported = {
        item.asname: node.module
        for node in nodes_of(source)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("qkvary.")
        for item in node.names
    }
    assert imported == {name: getattr(qk, name).__module__ for name in qk.__all__}


def test_the_package_does_not_import_its_own_root() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("src")
        for node in nodes_of(path)
        if (isinstance(node, ast.ImportFrom) and node.module == "qkvary")
        or (isinstance(node, ast.Import) and "qkvary" in [item.name for item in node.names])
    ]
    assert found == []


def test_the_names_are_used_as_their_types_say(tmp_path: Path) -> None:
    use_names(tmp_path / "model")
