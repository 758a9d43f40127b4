"""Python files of this repository as syntax trees, parsed as seldom as possible."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "qkvary"


@functools.cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """All of some folders of the repository, in order."""
    return tuple(path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file; the first is its module. Those of the package are asked for often."""
    return _kept_nodes(path) if path.is_relative_to(PACKAGE) else _parse(path)


def _parse(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


_kept_nodes = functools.cache(_parse)
