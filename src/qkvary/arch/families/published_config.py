"""Configurations of published models, and where they were published.

Only the fields that sizes follow from. A copy of a configuration file is a source where it names
the model that it was copied from.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedConfig:
    """The configuration of a model, and where it stands."""

    fields: Mapping[str, object]
    """As in its ``config.json``."""
    source: str
    """An address, or the class of transformers whose defaults they are."""


HUB = "https://huggingface.co"
LITGPT = "https://github.com/Lightning-AI/litgpt/blob/main/litgpt/config.py"
MAXTEXT = (
    "https://github.com/AI-Hypercomputer/maxtext/blob/main/src/maxtext/checkpoint_conversion/utils/"
    "hf_model_configs.py"
)
NANOGPT = "https://github.com/karpathy/nanoGPT/blob/master/model.py"


def take_defaults(of: str, fields: Mapping[str, object]) -> PublishedConfig:
    """Return a model that is the default of a configuration class."""
    return PublishedConfig(fields=fields, source=f"defaults of {of} in transformers 5.23.0")
