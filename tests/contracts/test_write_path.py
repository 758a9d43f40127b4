"""Only ``storage/durable.py`` creates, replaces or removes files; what else would is named."""

import ast
from collections.abc import Iterable, Iterator

from tests.contracts.parsed import PACKAGE, nodes_of, python_files

WRITER = "storage/durable.py"
# A mark of the kernel is set back by writing to a file that is none.
ALLOWED = {
    "cli/main.py": ("Path(os.devnull).open",),
    # The log of an engine, which writes it itself.
    "inference/serving.py": ("log.open",),
    # A compiler writes its library; a folder is opened to be locked.
    "nn/decoding/build.py": ("os.open", "made.write_bytes", "tempfile.TemporaryDirectory"),
    # A file is made to try its lock, and removed.
    "storage/file_systems.py": ("tempfile.NamedTemporaryFile",),
    # Output goes to the null device once the terminal is gone.
    "text/progress_line.py": ("os.open", "os.O_WRONLY"),
    # The folder of all runners is removed where it is empty.
    "studies/running/executors/slurm.py": ("self._folder.parent.rmdir",),
}

METHODS = {
    *("NamedTemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp"),
    *("makedirs", "mkdir", "removedirs", "rmdir", "rmtree"),
    *("hardlink_to", "rename", "renames", "symlink_to", "touch", "unlink"),
    *("extractall", "tofile", "write_bytes", "write_text"),
}
CALLS = {
    *("os.ftruncate", "os.link", "os.open", "os.pwrite", "os.remove", "os.replace", "os.truncate"),
    *("shutil.copy", "shutil.copyfile", "shutil.copytree", "shutil.move"),
    *("np.save", "np.savez", "numpy.save", "torch.load", "torch.save"),
    *("safetensors.torch.save_file", "save_file"),
}
MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
FLAGS = {"O_APPEND", "O_CREAT", "O_RDWR", "O_TRUNC", "O_WRONLY"}


def touches(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Everything in a module that would change a folder."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            roots = {name.split(".")[0] for name in [module or "", *(a.name for a in node.names)]}
            yield from (f"line {node.lineno}: {name}" for name in sorted(roots & MODULES))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = ast.unparse(node.func)
            method = name.split(".")[-1] if isinstance(node.func, ast.Attribute) else ""
            if name in CALLS or method in METHODS or opens_to_write(node, name):
                yield f"line {node.lineno}: {name}"
        elif isinstance(node, ast.Attribute) and node.attr in FLAGS:
            yield f"line {node.lineno}: os.{node.attr}"


def opens_to_write(node: ast.Call, name: str) -> bool:
    if name != "open" and not name.endswith(".open"):
        return False
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    texts = [value.value for value in values if isinstance(value, ast.Constant)]
    return any(isinstance(text, str) and set("wxa+") & set(text[:3]) for text in texts)


def test_no_other_file_touches_a_folder() -> None:
    found = [
        f"{name}, {what}"
        for path in python_files("src/qkvary")
        if (name := path.relative_to(PACKAGE).as_posix()) != WRITER
        for what in touches(nodes_of(path))
        if what.split()[-1] not in ALLOWED.get(name, ())
    ]
    assert found == []


def test_the_lock_is_never_removed_or_replaced() -> None:
    owner = next(
        node
        for node in nodes_of(PACKAGE / WRITER)
        if isinstance(node, ast.ClassDef) and node.name == "OwnerLock"
    )
    found = {what.split()[-1] for what in touches(ast.walk(owner))}
    assert found == {"os.open", "os.ftruncate", "os.pwrite", "os.O_CREAT", "os.O_RDWR"}
