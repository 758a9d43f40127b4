"""Only ``storage/durable.py`` creates, replaces or removes files; what else would is named.

``test_safety`` bans the calls that write; this holds every other way to touch a folder, and shows
for each of them that it would be caught.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "qkvary"
WRITERS = {"storage/durable.py"}
# The lock file is created and filled, and never removed.
LOCKS = {"storage/locks.py"}
# The null device stands in for a stream that was closed.
# The kernels and timings that can be made again stand below the one write path.
# A mark of the kernel is set back by writing to a file that is none.
ALLOWED = {
    "cli/main.py": ("os.open", "Path(os.devnull).open"),
    "inference/peak_memory.py": ("_MARKS.write_text",),
    "nn/decoding/build.py": ("tempfile.TemporaryDirectory",),
    "nn/decoding/kept.py": ("folder.mkdir", "path.write_text", "tempfile.TemporaryDirectory"),
}

METHODS = {
    "NamedTemporaryFile",
    "TemporaryDirectory",
    "hardlink_to",
    "makedirs",
    "mkdir",
    "mkdtemp",
    "mkstemp",
    "removedirs",
    "rename",
    "renames",
    "rmdir",
    "rmtree",
    "symlink_to",
    "tofile",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}
CALLS = {
    "np.save",
    "np.savez",
    "numpy.save",
    "os.ftruncate",
    "os.open",
    "os.pwrite",
    "os.remove",
    "os.replace",
    "os.truncate",
    "safetensors.torch.save_file",
    "save_file",
    "shutil.copy",
    "shutil.copyfile",
    "shutil.copytree",
    "shutil.move",
    "torch.load",
    "torch.save",
}
MODULES = {"dill", "joblib", "marshal", "pickle", "shelve"}


def touches(tree: ast.AST) -> Iterator[str]:
    """Everything in a module that would change a folder."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            roots = {name.split(".")[0] for name in [module or "", *(a.name for a in node.names)]}
            yield from (f"line {node.lineno}: {name}" for name in sorted(roots & MODULES))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = ast.unparse(node.func)
            method = name.split(".")[-1] if isinstance(node.func, ast.Attribute) else ""
            if name in CALLS or method in METHODS or opens_to_write(node, name):
                yield f"line {node.lineno}: {name}"


def opens_to_write(node: ast.Call, name: str) -> bool:
    if name != "open" and not name.endswith(".open"):
        return False
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    texts = [value.value for value in values if isinstance(value, ast.Constant)]
    return any(isinstance(text, str) and set("wxa+") & set(text[:3]) for text in texts)


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def source_files() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if name_of(path) not in WRITERS | LOCKS]


@pytest.mark.parametrize("path", source_files(), ids=name_of)
def test_no_other_file_touches_a_folder(path: Path) -> None:
    found = list(touches(ast.parse(path.read_text("utf-8"))))
    assert [what for what in found if what.split()[-1] not in ALLOWED.get(name_of(path), ())] == []


def test_the_lock_is_never_removed_or_replaced() -> None:
    (name,) = LOCKS
    found = {what.split()[-1] for what in touches(ast.parse((PACKAGE / name).read_text("utf-8")))}
    assert found == {"os.open", "os.ftruncate", "os.pwrite"}


@pytest.mark.parametrize(
    "mutant",
    [
        "torch.save(model.state_dict(), path)",
        "import pickle",
        "from pickle import loads",
        "open(path, 'w').write(text)",
        "open(path, mode='ab')",
        "path.open('x')",
        "path.write_text(text)",
        "os.rename(a, b)",
        "path.rename(other)",
        "os.replace(a, b)",
        "shutil.rmtree(path)",
        "path.unlink(missing_ok=True)",
        "np.save(path, array)",
        "from safetensors.torch import save_file\nsave_file(tensors, path)",
        "tempfile.mkdtemp()",
        "path.parent.mkdir(parents=True)",
    ],
)
def test_every_other_way_is_caught(mutant: str) -> None:
    assert list(touches(ast.parse(mutant)))


@pytest.mark.parametrize(
    "innocent",
    ["open(path)", "path.open('rb')", "text.replace('a', 'b')", "replace(config, seed=1)"],
)
def test_reading_is_not(innocent: str) -> None:
    assert list(touches(ast.parse(innocent))) == []
