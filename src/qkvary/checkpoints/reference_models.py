"""Finds the model or checkpoint that a reference names, as a ``Model`` without weights.

Torch-free. Everything that ``load_checkpoint`` loads is found here under the same name.
"""

from contextlib import suppress

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
    """Return the model of a named size, a local file or folder, or a hub id, in this order."""
    name = read_name(reference, "the name or path of a model")
    path = None
    if not has_size(name):
        # If it is no checkpoint, the error about the configuration names all choices.
        with suppress(UsageError, OSError):
            path = find_checkpoint(name)
    if path is None:
        return resolve_model(name)
    if (path / CONFIG_NAME).is_file():
        title, content = load_config(path)
        if isinstance(content.get("chars"), str):
            return as_model(read_config(content, str(path / CONFIG_NAME)), title)
        # llama2.c files have no configuration, and a file with this suffix may hold anything.
        if content.keys() & {"model_type", "kind", "text_config"}:
            return resolve_model(path)
    if found := headers.list_files(path):
        file = only_file(path, found)
        sizes = read_sizes(headers.read_file(file), str(file))
        config = make_config(sizes)
        if config is None:
            return read_model(describe_latent(sizes), file.stem)
        return as_model(config, file.stem)
    if found := llama2c_header.list_files(path):
        file = only_file(path, found)
        header = llama2c_header.read_file_header(file)
        return as_model(llama2c_header.make_config(header), file.stem)
    return resolve_model(path)
