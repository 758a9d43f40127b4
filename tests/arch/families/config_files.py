"""The configurations of published models next to the tests."""

import json
from pathlib import Path

from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model

FOLDER = Path(__file__).parent / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> dict[str, object]:
    content = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    assert isinstance(content, dict)
    return content


def read(name: str, **changes: object) -> Model:
    """The model of a file, with some of its fields replaced."""
    return read_model({**load(name), **changes}, name)


def read_without(name: str, *fields: str) -> Model:
    """The model of a file that does not mention some of its fields."""
    kept = {key: value for key, value in load(name).items() if key not in fields}
    return read_model(kept, name)
