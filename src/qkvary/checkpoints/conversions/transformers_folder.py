"""Our own networks as ``save_pretrained`` of transformers writes them, read without transformers.

One file of weights with the network's names behind ``network.``, and a ``config.json`` that holds
the network's configuration. The folder has no tokenizer of ours.
"""

import json
from pathlib import Path

from qkvary.checkpoints.models import LoadedModel, make_loaded, parse_config, parse_weights
from qkvary.data.model_configs import parse_config as parse_object
from qkvary.storage.errors import DamagedError, NewerFormatError
from qkvary.storage.reading import LARGEST_SIDE_FILE, read_file

FORMAT = "a network of ours that transformers saved (model.safetensors, and its config.json)"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
NETWORK_FORMAT = 1
PREFIX = "network."

_MODEL_TYPE = b'"qkvary"'


def recognises(path: Path) -> bool:
    """Whether it is such a folder, or its file of weights."""
    folder = path.parent if path.name == WEIGHTS else path
    if not ((folder / WEIGHTS).is_file() and (folder / CONFIG).is_file()):
        return False
    return _MODEL_TYPE in read_file(folder / CONFIG, limit=LARGEST_SIDE_FILE)


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
        fields = parse_object(read_file(where, limit=LARGEST_SIDE_FILE), str(where))
    except DamagedError:
        raise
    except ValueError as error:
        raise DamagedError(f"{where} cannot be used: {error}") from None
    version = fields.get("network_format", NETWORK_FORMAT)
    if version != NETWORK_FORMAT:
        raise NewerFormatError(
            f"{where} has network_format {version!r}, this qkvary reads {NETWORK_FORMAT}"
        )
    weights = parse_weights(read_file(folder / WEIGHTS), str(folder / WEIGHTS))
    network = json.dumps(fields.get("network")).encode()
    config = parse_config(network, where, tensors=len(weights))
    named = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    return make_loaded(config, named, None, str(folder / WEIGHTS))
