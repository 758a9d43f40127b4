"""The options that several commands share, with one name, one meaning and one help text each."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, dataclass_transform

from cyclopts import Parameter, Token

from qkvary.api import selection
from qkvary.api.options import (
    complete_checkpoint,
    complete_study,
    complete_variant,
)
from qkvary.api.selection import choose_study, read_seeds
from qkvary.data.checkpoint_names import RUNS
from qkvary.storage.errors import ResourceError
from qkvary.text.units import parse_count
from qkvary.training.trackers import TrackerName

if TYPE_CHECKING:
    pass

T = TypeVar("T")
DEFAULT_OUT = RUNS
parse_seeds = read_seeds
__all__ = ["choose_study", "complete_checkpoint", "complete_study", "complete_variant"]
MOST_THREADS = 1024
"""Threads or processes that any machine can be expected to start."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(group: type[T]) -> type[T]:
    """Make a class a group of options, each with its own name on the command line."""
    made = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(group)
    return Parameter(name="*")(made)


Json = Annotated[bool, Parameter(name="--json", help="Print one JSON document and nothing else.")]
Out = Annotated[Path, Parameter(help="Folder of runs and reports.")]
Checkpoint = Annotated[
    Path,
    Parameter(
        help="A name (tiny, tiny-k), a run of train by its folder or the start of its key, or a "
        "folder or file: our own, a .gguf, a llama2.c .bin, a character model.",
        completer=complete_checkpoint,
    ),
]
CheckpointTokenizer = Annotated[
    str | None,
    Parameter(
        help="For a checkpoint without one: gpt2, bytes, a tokenizer.json, tok512.bin or .model."
    ),
]
Device = Annotated[str, Parameter(help="Device: cpu, cuda, cuda:1, mps.")]
Log = Annotated[
    TrackerName | None,
    Parameter(help="A tracker that gets a copy of the logs; none if not given."),
]


StudyName = Annotated[
    str,
    Parameter(
        help="A study by its name, or a Python file with a STUDY by its path.",
        completer=complete_study,
    ),
]


Where = Annotated[selection.Where, Parameter(name="*")]
DEFAULT_WHERE = selection.Where()
Part = Annotated[selection.Part, Parameter(name="*")]
DEFAULT_PART = selection.PART


def convert_count(_kind: object, tokens: Sequence[Token]) -> int:
    """Read a count of tokens.

    Raises:
        ValueError: for anything else.
    """
    return parse_count(tokens[0].value)


def convert_positive(kind: object, tokens: Sequence[Token]) -> int:
    """Read a count of tokens, users or sequences, at least 1.

    Raises:
        ValueError: for anything else.
    """
    count = convert_count(kind, tokens)
    if count < 1:
        raise ValueError("expected at least 1, got 0")
    return count


def convert_threads(_kind: object, tokens: Sequence[Token]) -> int:
    """Read a number of threads or processes.

    Raises:
        ValueError: for anything but a positive whole number.
        ResourceError: if there are more than a machine can start.
    """
    name, text = tokens[0].keyword, tokens[0].value
    if not re.fullmatch(r"[0-9]{1,30}", text) or int(text) < 1:
        raise ValueError(f"expected {name} of at least 1, got {text[:60]!r}")
    if int(text) > MOST_THREADS:
        raise ResourceError(f"expected {name} of at most {MOST_THREADS:,}, got {int(text):,}")
    return int(text)


def counted(text: str) -> Parameter:
    """Return an option that is a count of tokens, such as 32k."""
    return Parameter(converter=convert_count, help=text)


def positive(text: str) -> Parameter:
    """Return an option that is a count of at least 1."""
    return Parameter(converter=convert_positive, help=text)


def variant_labels(text: str, *, show_default: bool | None = None) -> Parameter:
    """Return the option of the variants that a command compares, with its help text."""
    return Parameter(
        name=("--variant", "--variants"),
        consume_multiple=(1, None),
        show_default=show_default,
        help=text,
        completer=complete_variant,
    )
