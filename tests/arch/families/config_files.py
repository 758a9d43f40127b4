"""The configurations of published models: whole files next to the tests, else the package's."""

import json
from pathlib import Path

from qkvary.arch.families.sizes import published_configs
from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model

FOLDER = Path(__file__).parent / "configs"
WHOLE_FILES = sorted(path.stem for path in FOLDER.glob("*.json"))
OF_EACH_FAMILY = {
    str(published.config["model_type"]): name for name, published in published_configs().items()
}
"""The name of a published model by family."""


def load(name: str) -> dict[str, object]:
    if name not in WHOLE_FILES:
        return dict(published_configs()[name].config)
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
