"""The data of the papers: folders of JSON files in this package, each found by its name."""

import json
from importlib import resources
from typing import Any

from qkvary.text.names import suggest

_ENDING = ".json"


def packaged_names(folder: str) -> tuple[str, ...]:
    """Return the names of the files of a folder, sorted."""
    found = (resources.files("qkvary.literature") / folder).iterdir()
    return tuple(
        sorted(item.name.removesuffix(_ENDING) for item in found if item.name.endswith(_ENDING))
    )


def read_packaged(folder: str, name: str, what: str) -> Any:
    """Return the contents of a file.

    Args:
        folder: The folder, such as ``published``.
        name: The name of the file.
        what: What the file is, for the message.

    Raises:
        ValueError: for an unknown name, with the nearest known one.
    """
    names = packaged_names(folder)
    if name not in names:
        raise ValueError(f"expected {what}, got {name!r}; {suggest(name, names)}")
    file = resources.files("qkvary.literature") / folder / f"{name}{_ENDING}"
    return json.loads(file.read_text("utf-8"))
