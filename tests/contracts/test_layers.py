"""Rooms on floors: what import-linter checks in CI, said here for one file at a time."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "qkvary"
FLOORS = {
    "arch": 0,
    "costs": 1,
    "storage": 2,
    "nn": 3,
    "data": 3,
    "tasks": 4,
    "checkpoints": 4,
    "training": 5,
    "inference": 5,
    "studies": 6,
    "cli": 7,
}


def source_files() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE]


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imported_rooms(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} imports relatively"
            names = [f"{node.module}.{item.name}" for item in node.names]
        elif isinstance(node, ast.Import):
            names = [item.name for item in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "qkvary" and len(parts) > 1:
                yield node.lineno, parts[1]


def test_every_room_has_a_floor() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= set(FLOORS)


@pytest.mark.parametrize("path", source_files(), ids=name_of)
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    for line, other in imported_rooms(path):
        if other == room:
            continue
        assert FLOORS[other] < FLOORS[room], f"{name_of(path)}:{line}: {room} imports {other}"
