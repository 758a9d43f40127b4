"""The choice of a training by its name, for commands that are no verbs yet."""

from qkvary.api.selection import choose_training

__all__ = ["choose_training"]
