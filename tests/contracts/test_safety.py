"""Nothing is evaluated or trusted: what no rule of ruff forbids (see ``pyproject.toml``)."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.contracts.parsed import PACKAGE, nodes_of, python_files

# Rules of ruff forbid eval, exec, os.system, shell=True, mktemp, Markup and swallowed errors; those
# that name an import, such as pickle, torch.load and shutil.unpack_archive, stand in banned-api.
FORBIDDEN_CALLS = {"compile"}
FORBIDDEN_OPTIONS = {"allow_pickle", "trust_remote_code"}


def dangers(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if not isinstance(node, ast.Call):
            continue
        where = f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno}"
        if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            yield f"{where} calls {node.func.id}"
        for keyword in node.keywords:
            allows = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            if allows and keyword.arg in FORBIDDEN_OPTIONS:
                yield f"{where} says {keyword.arg}=True"


def test_nothing_dangerous_is_called() -> None:
    found = [what for path in python_files("src/qkvary") for what in dangers(path)]
    assert found == []
