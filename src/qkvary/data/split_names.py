"""The names of the splits of examples that are drawn, or read from labelled texts."""

from typing import Literal

DataSplit = Literal["train", "validation", "test"]
