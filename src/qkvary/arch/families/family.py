"""What a family of published models is: a name, and how its configuration becomes a model."""

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
    """What ``model_type`` says in a configuration of the family."""
    title: str
    """What people call it."""
    read: Reader
    """How its configuration becomes a model."""
    text_section: str | None = None
    """Where a model of several modalities keeps the configuration of its language model."""
