"""Nothing is read through pickle or evaluated, and every persistent byte takes one write path."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "qkvary"

FORBIDDEN_MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "torch.save",
    "torch.load",
    "yaml.load",
    "os.system",
    "shutil.move",
    "shutil.unpack_archive",
    "tempfile.mktemp",
}
# The one write path, the lock that holds its owner's name, the null device for closed streams, and
# what decoding can make again, below the floor of the one write path, and a mark of the kernel's.
WRITERS = {
    "storage/durable.py",
    "storage/locks.py",
    "cli/main.py",
    "inference/peak_memory.py",
    "nn/decoding/kept.py",
}
WRITING_CALLS = {
    "os.rename",
    "os.replace",
    "os.truncate",
    "os.ftruncate",
    "os.link",
}
WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}
WRITING_METHODS = {"write_text", "write_bytes", "extractall"}


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node, ast.unparse(node.func)


def modes(node: ast.Call) -> Iterator[str]:
    for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (item.name.split(".")[0] for item in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def opens_for_writing(node: ast.Call, name: str) -> bool:
    opens = name == "open" or name.endswith(".open")
    return opens and any(set(mode) <= set("wxa+bt") and mode for mode in modes(node))


@pytest.mark.parametrize("path", source_files(), ids=name_of)
def test_nothing_is_loaded_through_pickle(path: Path) -> None:
    assert FORBIDDEN_MODULES.isdisjoint(imports(ast.parse(path.read_text("utf-8"))))


@pytest.mark.parametrize("path", source_files(), ids=name_of)
def test_nothing_dangerous_is_called(path: Path) -> None:
    for node, name in calls(ast.parse(path.read_text("utf-8"))):
        where = f"{name_of(path)}:{node.lineno}"
        assert name not in FORBIDDEN_CALLS, f"{where} calls {name}"
        assert name.split(".")[-1] != "Markup" or path.parent.name == "reports", where
        for keyword in node.keywords:
            allows = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            assert not (allows and keyword.arg in {"allow_pickle", "trust_remote_code", "shell"}), (
                where
            )


@pytest.mark.parametrize(
    "path", [path for path in source_files() if name_of(path) not in WRITERS], ids=name_of
)
def test_files_are_written_through_the_one_write_path(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert WRITING_FLAGS.isdisjoint(names)
    for node, name in calls(tree):
        where = f"{name_of(path)}:{node.lineno} calls {name}"
        assert name not in WRITING_CALLS, where
        assert name.split(".")[-1] not in WRITING_METHODS, where
        assert not opens_for_writing(node, name), where


@pytest.mark.parametrize("path", source_files(), ids=name_of)
def test_no_error_is_swallowed_silently(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            where = f"{name_of(path)}:{node.lineno}"
            assert node.type is not None, f"{where}: bare except"
            broad = ast.unparse(node.type) in {"Exception", "BaseException"}
            empty = all(isinstance(item, ast.Pass) for item in node.body)
            assert not (broad and empty), f"{where}: an error disappears"
