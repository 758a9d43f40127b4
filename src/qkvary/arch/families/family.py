"""A family of published models: a name, and a function from configuration to model."""

from collections.abc import Callable
from dataclasses import dataclass

from qkvary.arch.families.fields import Fields
from qkvary.arch.models import Model

Reader = Callable[[Fields, str], Model]
"""Makes a model of a configuration and of the name that it gets in tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One entry of the table of families."""

    model_type: str
    """The ``model_type`` of its configurations."""
    title: str
    """Its usual name."""
    read: Reader
    """The function that makes a model of a configuration."""
    text_section: str | None = None
    """The key of the language model's configuration in a multimodal model."""
