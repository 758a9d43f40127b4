"""Reads chat templates, the Jinja texts with which an engine writes messages as a prompt.

Templates are copied between checkpoints and into exports; they are never run here.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from qkvary.checkpoints.formats.transformers_folder import read_part
from qkvary.checkpoints.gguf import headers
from qkvary.checkpoints.models import TEMPLATE
from qkvary.data.checkpoint_names import find_checkpoint
from qkvary.data.model_configs import parse_config
from qkvary.storage.errors import DamagedError
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, only_file, read_path

TOKENIZER_CONFIG = "tokenizer_config.json"


def read_chat_template(reference: object) -> str | None:
    """Return the chat template of a checkpoint, or ``None``.

    The template is in a separate file or in the tokenizer's configuration; of several templates,
    the one named ``default`` is returned.
    """
    if not isinstance(reference, str | os.PathLike):
        return None
    path = find_checkpoint(read_path(reference))
    if files := headers.list_files(path):
        found = headers.read_file(only_file(path, files)).metadata.get(headers.CHAT_TEMPLATE)
        return found if isinstance(found, str) else None
    folder = path if path.is_dir() else path.parent
    name = next((one for one in (TEMPLATE, TOKENIZER_CONFIG) if (folder / one).is_file()), None)
    return None if name is None else _read(folder, name)


def _read(folder: Path, name: str) -> str | None:
    data = read_part(folder, name, limit=MAX_SIDE_FILE_BYTES)
    try:
        text = data.decode() if name == TEMPLATE else _choose(parse_config(data, name))
        # JSON may hold surrogates, which no file can store.
        (text or "").encode()
    except ValueError as error:
        raise DamagedError(f"{folder / name} has no readable chat template: {error}") from None
    return text


def _choose(content: Mapping[str, Any]) -> str | None:
    found = content.get("chat_template")
    if isinstance(found, list):
        entries = [one for one in cast("list[Any]", found) if isinstance(one, dict)]
        named = (one for one in entries if one.get("name") == "default")
        found = next((one.get("template") for one in named), None)
    return found if isinstance(found, str) else None
