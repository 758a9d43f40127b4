"""Any reference to a model or checkpoint as a costed ``Model``: from names and headers, no weights.

Torch-free. Everything that ``load_checkpoint`` loads is found here under the same name.
"""

from pathlib import Path

from qkvary.arch.families.sizes import has_size
from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model, as_model
from qkvary.checkpoints import llama2c_header
from qkvary.checkpoints.char_config import read_config
from qkvary.checkpoints.gguf import headers
from qkvary.checkpoints.gguf.configs import describe_latent, make_config, read_sizes
from qkvary.data.checkpoint_names import find_checkpoint
from qkvary.data.model_configs import CONFIG_NAME, load_config, resolve_model
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import StrPath, only_file, read_name


def find_reference(reference: StrPath) -> Model:
    """Return the model that a reference names: a named size, else a file here, else a hub id."""
    name = read_name(reference, "the name or path of a model")
    path = None if has_size(name) else _find(name)
    if path is None:
        return resolve_model(name)
    described = _read_own_config(path)
    if described is not None:
        return described
    if found := headers.list_files(path):
        return _read_gguf(only_file(path, found))
    if found := llama2c_header.list_files(path):
        file = only_file(path, found)
        return as_model(
            llama2c_header.make_config(llama2c_header.read_file_header(file)), file.stem
        )
    return resolve_model(path)


def _find(name: str) -> Path | None:
    try:
        return find_checkpoint(name)
    except (UsageError, OSError):
        # The error about the configuration names all choices.
        return None


def _read_own_config(path: Path) -> Model | None:
    """Return the model of a folder whose ``config.json`` describes it."""
    if not (path / CONFIG_NAME).is_file():
        return None
    name, content = load_config(path)
    if isinstance(content.get("chars"), str):
        return as_model(read_config(content, str(path / CONFIG_NAME)), name)
    # llama2.c files have no configuration, and a file with this suffix may hold anything.
    return resolve_model(path) if content.keys() & {"model_type", "kind", "text_config"} else None


def _read_gguf(file: Path) -> Model:
    sizes = read_sizes(headers.read_file(file), str(file))
    config = make_config(sizes)
    if config is not None:
        return as_model(config, file.stem)
    return read_model(describe_latent(sizes), file.stem)
