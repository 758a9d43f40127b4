"""The files of the built-in studies."""

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

import qkvary.papers
from qkvary.text.names import spell


@cache
def modules() -> dict[str, str]:
    folder = Path(qkvary.papers.__file__ or "").parent
    return {
        spell(file.stem): ".".join(
            ("qkvary.papers", *file.relative_to(folder).with_suffix("").parts)
        )
        for file in folder.rglob("studies/[a-z]*.py")
    }


def module_of(name: str) -> ModuleType:
    return importlib.import_module(modules()[name])
