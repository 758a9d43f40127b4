"""Nothing is evaluated or trusted: what no rule of ruff forbids (see ``pyproject.toml``)."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.contracts.parsed import PACKAGE, nodes_of, python_files

# Rules of ruff forbid eval, exec, os.system, shell=True, mktemp, Markup and swallowed errors; those
# that name an import, such as pickle, torch.load and shutil.unpack_archive, stand in banned-api.
FORBIDDEN_CALLS = {"compile"}
# The strangers' documents are read by parse_json, which limits their depth, and native parsers
# run in a process of their own.
LIMITED = {
    "json.load": (),
    "json.loads": (
        # What the package carries, wrote itself, or checked before.
        "api/results.py",
        "arch/families/sizes.py",
        "checkpoints/gguf/vocabularies.py",
        "data/documents.py",
        "papers/catalog.py",
        "papers/kept_figures.py",
        "storage/parser_processes.py",
        "storage/untrusted_files.py",
    ),
    "Tokenizer.from_str": ("data/tokenizer_process.py",),
    "LibraryModel.from_str": ("checkpoints/huggingface/fast_tokenizers.py",),
}
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


def test_parsers_of_strangers_files_have_limits() -> None:
    found: dict[str, set[str]] = {name: set() for name in LIMITED}
    for path in python_files("src/qkvary"):
        for node in nodes_of(path):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            name = next((one for one in LIMITED if f".{called}".endswith(f".{one}")), None)
            if name is not None:
                found[name].add(path.relative_to(PACKAGE).as_posix())
    assert found == {name: set(files) for name, files in LIMITED.items()}
