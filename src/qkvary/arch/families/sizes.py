"""Models by name: the networks that can be trained here, and well-known published models."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model, as_model
from qkvary.arch.named_networks import ALIASES, NETWORKS, canonical_name
from qkvary.text.names import find_name, near_names


class PublishedConfig(NamedTuple):
    """The configuration of a published model, reduced to the fields that determine sizes."""

    source: str
    """The URL of the configuration, or the class of transformers that has these defaults."""
    config: Mapping[str, object]


@functools.cache
def published_configs() -> Mapping[str, PublishedConfig]:
    """Return all published models that this package knows by name."""
    content = json.loads(Path(__file__).with_name("published.json").read_bytes())
    return {name: PublishedConfig(**entry) for name, entry in content.items()}


def name_sizes() -> tuple[str, ...]:
    """Return the names of all models. The networks of this package come first."""
    return (*NETWORKS, *published_configs())


def has_size(name: str) -> bool:
    """Return whether a model of that name is known, in any spelling."""
    return _find(name) is not None


def load_size(name: str) -> Model:
    """Return the model called ``name``, such as ``lm-300m``, ``300M`` or ``llama-3.1-8b``."""
    known = _find(name)
    if known is None:
        near, choices = suggest_sizes(name), ", ".join(name_sizes())
        hint = f"did you mean {' or '.join(near)}?" if near else f"choices: {choices}"
        raise ValueError(f"expected the name of a model, got {name[:60]!r}; {hint}")
    if known in NETWORKS:
        return as_model(NETWORKS[known], name=known)
    return read_model(published_configs()[known].config, known)


def suggest_sizes(name: str) -> Sequence[str]:
    """Return the known names nearest to ``name``, best first."""
    return near_names(name, (*name_sizes(), *ALIASES), most=3, cutoff=0.7)


def _find(name: str) -> str | None:
    return canonical_name(name) or find_name(name, published_configs())
