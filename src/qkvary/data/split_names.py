"""The names of the splits of a data set."""

from typing import Literal

DataSplit = Literal["train", "validation", "test"]
