"""The budgets of the house: sizes of files, functions and constructors, names of modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.contracts.parsed import ROOT, nodes_of, python_files

FOLDERS = ("src", "tests", "benchmarks")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
USUAL_FUNCTION_LINES = 40
USUAL_SHARE = 0.9
MAX_CONSTRUCTOR_PARAMETERS = 12
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core"}

# Rows of tables and records: the program fills them, nobody types their constructor.
RECORD_MODULES = {
    "src/qkvary/analysis/results.py",
    "src/qkvary/papers/claim.py",
    "src/qkvary/papers/findings.py",
    "src/qkvary/studies/results/summary.py",
    "src/qkvary/studies/records.py",
}
CATALOGS = {
    f"src/qkvary/{room}/catalog.py"
    for room in (
        *("data", "tasks", "checkpoints", "studies", "reports", "conversions"),
        "studies/running/executors",
    )
} | {
    "src/qkvary/studies/running/executors/task.py",
    "src/qkvary/arch/canonical.py",
}
"""They find files by name; the last two import what trains, and what a user names, when it is
used."""
VERB_ROOMS = {ROOT / "src/qkvary" / room for room in ("api", "cli", "papers")}
ROOT_NAMES = ROOT / "src/qkvary/__init__.py"
"""The public names, each of which is imported when it is first used."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes_of(path) if isinstance(node, FUNCTIONS))


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def constructor_parameters(node: ast.ClassDef) -> int:
    if is_dataclass(node):
        return sum(isinstance(item, ast.AnnAssign) for item in node.body)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            given = item.args
            return len(given.posonlyargs + given.args + given.kwonlyargs) - 1
    return 0


def test_files_are_short() -> None:
    pages = [path for kind in ("css", "js", "html") for path in (ROOT / "src").rglob(f"*.{kind}")]
    files = [*python_files(*FOLDERS), *pages]
    lines = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in files}
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{name_of(path)}:{node.lineno} {node.name}": length(node)
        for path in python_files(*FOLDERS)
        for node in functions(path)
    }
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}
    assert too_long == {}
    usual = sum(lines <= USUAL_FUNCTION_LINES for lines in lengths.values())
    assert usual >= USUAL_SHARE * len(lengths)


def test_constructors_take_few_parameters() -> None:
    found = {
        f"{name_of(path)}:{node.lineno} {node.name}": constructor_parameters(node)
        for path in python_files("src")
        if name_of(path) not in RECORD_MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
    }
    too_many = {name: count for name, count in found.items() if count > MAX_CONSTRUCTOR_PARAMETERS}
    assert too_many == {}


def is_logic(node: ast.stmt) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    return not (docstring or names or isinstance(node, ast.Import | ast.ImportFrom))


def test_package_files_hold_no_logic() -> None:
    logic = [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files("src")
        if path.name == "__init__.py" and path != ROOT_NAMES
        for node in ast.parse(path.read_text("utf-8")).body
        if is_logic(node)
    ]
    assert logic == []


def test_no_module_is_a_drawer() -> None:
    paths = [*python_files(*FOLDERS), *(path.parent for path in python_files(*FOLDERS))]
    drawers = {name_of(path) for path in paths if path.stem.strip("_") in BANNED_NAMES}
    assert drawers == set()


def hidden_imports(path: Path) -> Iterator[tuple[int, str]]:
    for function in functions(path):
        for node in ast.walk(function):
            found: object = ""
            if isinstance(node, ast.ImportFrom):
                found = node.module or ""
            elif isinstance(node, ast.Import):
                found = next((one.name for one in node.names if "qkvary" in one.name), "")
            elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
                found = node.args[0].value if isinstance(node.args[0], ast.Constant) else "qkvary"
            if str(found).startswith("qkvary"):
                yield function.lineno, ast.unparse(node)


def test_no_first_party_import_hides_in_a_function() -> None:
    """A verb imports what it needs when it runs, and a catalog what it finds by file name."""
    hidden = {
        f"{name_of(path)}:{line}": what
        for path in python_files("src")
        if name_of(path) not in CATALOGS and path != ROOT_NAMES and path.parent not in VERB_ROOMS
        for line, what in hidden_imports(path)
    }
    assert hidden == {}
