"""Configurations of published models, reduced to the fields that determine sizes."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class PublishedConfig(NamedTuple):
    """The configuration of a model, and its source."""

    source: str
    """The URL of the configuration, or the class of transformers that has these defaults."""
    config: Mapping[str, object]


@functools.cache
def published_configs() -> Mapping[str, PublishedConfig]:
    """Return all published models that this package knows by name."""
    content = json.loads(Path(__file__).with_name("published.json").read_bytes())
    return {name: PublishedConfig(**entry) for name, entry in content.items()}
