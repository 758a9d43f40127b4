"""Our own networks as ``save_pretrained`` of transformers writes them, read without transformers.

One file of weights with the network's names behind ``network.``, and a ``config.json`` that holds
the network's configuration. What ``qkvary export`` wrote has our tokenizer too, and a manifest with
which files are compared.
"""

import json
from pathlib import Path
from typing import Any, cast

from qkvary.checkpoints.models import LoadedModel, make_loaded, parse_config, parse_weights
from qkvary.data.model_configs import parse_config as parse_object
from qkvary.data.tokenizers import Tokenizer, make_tokenizer
from qkvary.storage.documents import DocumentFormat
from qkvary.storage.errors import DamagedError
from qkvary.storage.jsonvalues import decode
from qkvary.storage.manifest import MANIFEST_NAME, read_manifest
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, MAX_WEIGHT_BYTES, read_file

FORMAT = "a network of ours that transformers saved (model.safetensors, and its config.json)"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
OWN_TOKENIZER = "qkvary_tokenizer.json"
"""Our description of the tokenizer; transformers has its own beside it."""
CONFIG_FORMAT = DocumentFormat(name="a configuration of ours", version=1, key="network_format")
PREFIX = "network."

_MODEL_TYPE = b'"qkvary"'


def recognises(path: Path) -> bool:
    """Whether it is such a folder, or its file of weights."""
    folder = path.parent if path.name == WEIGHTS else path
    if not ((folder / WEIGHTS).is_file() and (folder / CONFIG).is_file()):
        return False
    return _MODEL_TYPE in read_file(folder / CONFIG, limit=MAX_SIDE_FILE_BYTES)


def load(path: Path) -> LoadedModel:
    """Read the network.

    Raises:
        UsageError: if a file cannot be read.
        DamagedError: if a file is not what it should be.
        NewerFormatError: if a newer qkvary wrote it.
        UnsafeError: if it is a pickle.
    """
    folder = path.parent if path.name == WEIGHTS else path
    where = folder / CONFIG
    try:
        data = _read(folder, CONFIG, limit=MAX_SIDE_FILE_BYTES)
        fields = parse_object(data, str(where))
    except DamagedError:
        raise
    except ValueError as error:
        raise DamagedError(f"{where} cannot be used: {error}") from None
    # What transformers wrote may leave it out.
    CONFIG_FORMAT.check({**CONFIG_FORMAT.version_field, **fields}, where)
    weights = parse_weights(_read(folder, WEIGHTS), str(folder / WEIGHTS))
    network = json.dumps(fields.get("network")).encode()
    config = parse_config(network, where, tensors=len(weights))
    named = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    return make_loaded(config, named, _read_tokenizer(folder), str(folder / WEIGHTS))


def _read(folder: Path, name: str, *, limit: int = MAX_WEIGHT_BYTES) -> bytes:
    """The bytes of a file, compared with the manifest where there is one."""
    if (folder / MANIFEST_NAME).is_file():
        return read_manifest(folder).read(folder, name)
    return read_file(folder / name, limit=limit)


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    path = folder / OWN_TOKENIZER
    if not path.is_file():
        return None
    data = _read(folder, OWN_TOKENIZER, limit=MAX_SIDE_FILE_BYTES)
    try:
        return make_tokenizer(cast("dict[str, Any]", decode(data)))
    except (ValueError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} is no tokenizer: {error}") from None
