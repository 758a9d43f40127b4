"""Reads our networks that ``save_pretrained`` of transformers saved, without transformers.

A folder has one file of weights, and a ``config.json`` with the network's configuration. The names
of the weights begin with ``network.``. A folder from ``qkvary export`` also has our tokenizer and a
manifest for verification.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from qkvary.checkpoints.models import (
    LoadedModel,
    build_model,
    parse_config,
    parse_tokenizer,
    parse_weights,
)
from qkvary.data.model_configs import parse_config as parse_object
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.errors import DamagedError
from qkvary.storage.jsonvalues import DocumentFormat
from qkvary.storage.manifest import MANIFEST_NAME, read_manifest
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, MAX_WEIGHT_BYTES, explain, read_file

WEIGHTS, CONFIG = "model.safetensors", "config.json"
OWN_TOKENIZER = "qkvary_tokenizer.json"
"""The file that describes our tokenizer; transformers does not use it."""
CONFIG_FORMAT = DocumentFormat(name="a configuration of ours", version=1, key="network_format")
PREFIX = "network."


def load(folder: Path) -> LoadedModel:
    """Load the network."""
    fields = read_config(folder)
    where = str(folder / WEIGHTS)
    weights = parse_weights(read_part(folder, WEIGHTS), where)
    # transformers omits default values.
    CONFIG_FORMAT.check({**CONFIG_FORMAT.version_field, **fields}, folder / CONFIG)
    network = json.dumps(fields.get("network")).encode()
    config = parse_config(network, folder / CONFIG, len(weights))
    named = collect(((name.removeprefix(PREFIX), one) for name, one in weights.items()), where)
    return build_model(config, named, read_own_tokenizer(folder), where)


def read_config(folder: Path) -> dict[str, object]:
    """Return the ``config.json`` of a folder."""
    where = str(folder / CONFIG)
    data = read_part(folder, CONFIG, limit=MAX_SIDE_FILE_BYTES)
    with explain(where, "cannot be used"):
        return parse_object(data, where)


def read_part(folder: Path, name: str, *, limit: int = MAX_WEIGHT_BYTES) -> bytes:
    """Return the bytes of a file, after checking them against the manifest if there is one."""
    if (folder / MANIFEST_NAME).is_file():
        return read_manifest(folder).read(folder, name)
    return read_file(folder / name, limit=limit)


def collect(tensors: Iterable[tuple[str, Tensor]], where: str) -> dict[str, Tensor]:
    """Return tensors by name; duplicates are refused, because one would replace the other."""
    found = dict[str, Tensor]()
    for name, tensor in tensors:
        if name in found:
            raise DamagedError(f"{where} has two tensors for {name[:80]}")
        found[name] = tensor
    return found


def read_own_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer in a folder that qkvary exported, or ``None`` if there is none."""
    path = folder / OWN_TOKENIZER
    if not path.is_file():
        return None
    return parse_tokenizer(read_part(folder, OWN_TOKENIZER, limit=MAX_SIDE_FILE_BYTES), path)
