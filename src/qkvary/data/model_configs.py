"""Reads configurations of published models from a file, a folder or the hub.

The configurations are untrusted. Every defect raises a ``ValueError`` with a message of one
sentence. This module does not interpret the fields of a configuration.
"""

import json
import re
from pathlib import Path
from typing import cast

from qkvary.arch.canonical import from_dict, stored_kind
from qkvary.arch.families.fields import MOST_LAYERS
from qkvary.arch.families.sizes import has_size, load_size, name_sizes, suggest_sizes
from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model, as_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.data.checkpoint_names import find_packaged
from qkvary.data.downloads import fetch, hub_address, is_offline, keep_in_cache
from qkvary.storage.environment import cache_directory
from qkvary.storage.jsonvalues import decode
from qkvary.storage.untrusted_files import StrPath, check_regular_file, read_name, read_start
from qkvary.text.names import short

CONFIG_NAME = "config.json"
LARGEST_CONFIG = 1_000_000
"""Maximum size of a configuration in bytes. Published ones have a few thousand bytes."""

_SHOWN_SIZES = ("lm-10m", "gpt2", "pythia-70m", "llama-3.1-8b", "qwen3-8b", "gemma-4-31b")
"""Named sizes that an error suggests."""
_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)


def resolve_model(reference: StrPath) -> Model:
    """Return the model that a reference names: a named size first, then a configuration.

    Raises:
        ValueError: if the reference names no model, or the configuration is invalid.
        DownloadError: if the hub cannot be reached.
    """
    reference = read_name(reference, "the name or path of a model")
    if has_size(reference):
        return load_size(reference)
    packaged = None if _find(reference) is not None else find_packaged(reference)
    name, config = load_config(reference if packaged is None else str(packaged))
    found = config.get("network") if config.get("model_type") == "qkvary" else config
    own = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    if own.get("kind") == stored_kind(LanguageModelConfig):
        layers = own.get("num_layers")
        # Checked first, because decoding allocates all layers.
        if isinstance(layers, int) and layers > MOST_LAYERS:
            raise ValueError(f"{name}: expected at most {MOST_LAYERS:,} layers, got {layers:,}")
        return as_model(from_dict(LanguageModelConfig, own), name)
    return read_model(config, name)


def load_config(reference: StrPath) -> tuple[str, dict[str, object]]:
    """Return a name and the configuration of a published model.

    Local files take precedence over a repository of the same name. Downloads are cached.
    """
    reference = read_name(reference, "the name or path of a model")
    path = _find(reference)
    if path is not None:
        full = path.absolute()
        folder = full if path.is_dir() else full.parent
        is_named = path.is_file() and full.name != CONFIG_NAME
        name = full.stem if is_named else folder.resolve().name
        return name or "model", parse_config(_read(path), str(path))
    if _HUB_ID.fullmatch(reference) and ".." not in reference:
        return reference, _load_from_hub(reference)
    raise ValueError(
        "expected a named size, a configuration file, a folder with one, or a hub id owner/name, "
        f"got {short(reference, 60)!r}{_hint(reference)}"
    )


def parse_config(data: bytes, source: str) -> dict[str, object]:
    """Decode a configuration strictly: one JSON object, no duplicate keys, no NaN."""
    if len(data) > LARGEST_CONFIG:
        raise ValueError(f"expected a configuration of at most 1 MB in {source}, got more")
    try:
        content = decode(data.decode("utf-8"))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(
            f"expected one JSON object in {source}, got text that is not JSON ({place})"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"expected one JSON object in {source}, got something else: {error}"
        ) from error
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise ValueError(f"expected one JSON object in {source}, got a {kind}")  # noqa: TRY004
    return cast("dict[str, object]", content)


def _find(reference: str) -> Path | None:
    """Return the local file or folder of that name, or ``None``."""
    try:
        path = Path(reference).expanduser()
        path.stat()
    except PermissionError as error:
        raise ValueError(f"expected a readable file, got {reference}: {error.strerror}") from error
    except (RuntimeError, ValueError, OSError):
        # Also if the name is too long, or links are circular.
        return None
    return path if reference else None


def _read(path: Path) -> bytes:
    target = path / CONFIG_NAME if path.is_dir() else path
    if not target.exists():
        raise ValueError(f"expected a {CONFIG_NAME} in the folder {path}, got none")
    # Reading a pipe or a device would never end.
    check_regular_file(target)
    return read_start(target, LARGEST_CONFIG + 1)


def _load_from_hub(reference: str) -> dict[str, object]:
    folder = cache_directory()
    stored = folder / "configs" / f"{reference.replace('/', '--')}.json" if folder else None
    if stored is not None and stored.is_file():
        return parse_config(_read(stored), str(stored))
    if is_offline():
        raise ValueError(
            f"expected a local configuration while HF_HUB_OFFLINE is set, got the hub id "
            f"{reference}"
        )
    url = f"{hub_address()}/{reference}/resolve/main/{CONFIG_NAME}"
    try:
        data = fetch(url, limit=LARGEST_CONFIG)
    except FileNotFoundError as error:
        raise ValueError(
            f"expected a repository with a {CONFIG_NAME}, got {reference}, which the hub does not "
            "know"
        ) from error
    except PermissionError as error:
        raise ValueError(
            f"expected a public configuration, got {reference}: give the path of a downloaded "
            f"{CONFIG_NAME} instead"
        ) from error
    config = parse_config(data, url)
    if stored is not None:
        keep_in_cache(stored, data)
    return config


def _hint(reference: str) -> str:
    """Return a hint for a name: the named size that is nearest to it, or a few named sizes."""
    if near := suggest_sizes(short(reference, 60)):
        return f"; did you mean the named size {near[0]}?"
    others = len(name_sizes()) - len(_SHOWN_SIZES)
    return f"; named sizes: {', '.join(_SHOWN_SIZES)} and {others} others"
