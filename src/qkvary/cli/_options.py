"""The options that several commands share, with one name, one meaning and one help text each."""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, dataclass_transform

from cyclopts import Parameter, Token

from qkvary.arch.table import VARIANTS
from qkvary.data.checkpoint_names import RUNS, checkpoint_names
from qkvary.storage.environment import check_device
from qkvary.storage.errors import ResourceError, UsageError
from qkvary.text.units import parse_count
from qkvary.training.trackers import TrackerName

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from qkvary.studies.study import Study

T = TypeVar("T")
DEFAULT_OUT = RUNS
MOST_THREADS = 1024
"""Threads or processes that any machine can be expected to start."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(group: type[T]) -> type[T]:
    """Make a class a group of options, each with a name of its own on the command line."""
    made = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(group)
    return Parameter(name="*")(made)


def complete_study(_context: object) -> Iterator[str]:
    """Yield the names of studies, for the shell."""
    from qkvary.studies.catalog import study_names

    yield from study_names()


def complete_variant(_context: object) -> Iterator[str]:
    """Yield the labels of the variants, for the shell."""
    yield from (one.label for one in VARIANTS)


def complete_checkpoint(context: "CompletionContext") -> Iterator[str]:
    """Yield the names of checkpoints and matching paths, for the shell."""
    yield from checkpoint_names()
    folder = context.incomplete[: context.incomplete.rfind("/") + 1]
    with suppress(OSError), os.scandir(folder or ".") as entries:
        yield from (f"{folder}{one.name}{'/' if one.is_dir() else ''}" for one in entries)


Json = Annotated[bool, Parameter(name="--json", help="Print one JSON document and nothing else.")]
Full = Annotated[bool, Parameter(help="Print the whole report.")]
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
NetworkDtype = Annotated[
    Literal["float64", "float32", "bfloat16", "float16"] | None,
    Parameter(help="Number format; as stored if not given."),
]
NetworkWeights = Annotated[
    Literal["int8"] | None,
    Parameter(help="Codes of 8 bits for its matrices; numbers if not given."),
]
Log = Annotated[
    TrackerName | None,
    Parameter(help="A tracker that gets a copy of the logs; none if not given."),
]


@options
class NetworkOptions:
    """The device and the numbers of a network."""

    device: Device = "cpu"
    dtype: NetworkDtype = None
    weights: NetworkWeights = None


StudyName = Annotated[
    str,
    Parameter(
        help="A study by its name, or a Python file with a STUDY by its path.",
        completer=complete_study,
    ),
]


@options
class Where:
    """Changes to the definition of a study; the same options find its runs again."""

    seeds: Annotated[
        str | None,
        Parameter(
            name=("--seeds", "--seed"), help="Other seeds than the study's: 7 or 0,1,2 or 0-4."
        ),
    ] = None
    device: Annotated[str, Parameter(help="Device: cpu, cuda, cuda:1, mps.")] = "cpu"
    dtype: Annotated[
        Literal["float32", "float64"], Parameter(help="Number format of the weights.")
    ] = "float32"


DEFAULT_WHERE = Where()


@options
class Part(Where):
    """The protocol and the part of a study; the same options find its runs again."""

    protocol: Annotated[str | None, Parameter(help="A study's other protocol, such as clean.")] = (
        None
    )
    tasks: Annotated[
        tuple[str, ...], Parameter(name="--task", help="Only this task; repeat it for more.")
    ] = ()
    settings: Annotated[
        tuple[str, ...], Parameter(name="--setting", help="Only this setting; repeat it for more.")
    ] = ()
    variants: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--variant", "--variants"),
            help="Only this variant and the baseline; repeat it for more.",
            completer=complete_variant,
        ),
    ] = ()

    def typed(self, reference: str, study: "Study") -> str:
        """Return the study and the options that select the part, as they are typed.

        Args:
            reference: The name or path of the study, as it was typed.
            study: The study. Its name holds the protocol, but is not the path of its file.
        """
        is_path = reference.endswith(".py") or "/" in reference
        protocol = (self.protocol,) if is_path and self.protocol else ()
        chosen = {
            "--protocol": protocol,
            "--task": self.tasks,
            "--setting": self.settings,
            "--variant": self.variants,
        }
        options = [f"{name} {quote(one)}" for name, some in chosen.items() for one in some]
        return " ".join([quote(reference) if is_path else study.name, *options])


DEFAULT_PART = Part()


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


Length = Annotated[int, counted("Tokens of the sequence: 1024, 32k, 1M.")]


def variant_labels(text: str, *, show_default: bool | None = None) -> Parameter:
    """Return the option of the variants that a command compares, with its help text."""
    return Parameter(
        name=("--variant", "--variants"),
        consume_multiple=(1, None),
        show_default=show_default,
        help=text,
        completer=complete_variant,
    )


def choose_study(name: str, part: Part) -> "Study":
    """Return the study of a name or path, or the requested part of it.

    Raises:
        UsageError: for an unknown study, protocol, device or list of seeds.
        ValueError: for a task, setting or variant that the study does not have.
    """
    # Other commands need no studies.
    from qkvary.studies.catalog import load_study

    study = load_study(name, part.protocol)
    check_device(part.device)
    if part.tasks or part.settings or part.variants:
        study = study.select(tasks=part.tasks, settings=part.settings, variants=part.variants)
    seeds = study.seeds if part.seeds is None else parse_seeds(part.seeds)
    return dataclasses.replace(study, seeds=seeds, device=part.device, dtype=part.dtype)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds such as ``7``, ``0,1,2`` or ``0-4``.

    Raises:
        UsageError: for anything else.
    """
    ranges = [_parse_range(part.strip(), text) for part in text.split(",")]
    return tuple(seed for found in ranges for seed in found)


def _parse_range(part: str, whole: str) -> range:
    first, dash, last = part.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise UsageError(f"expected seeds such as 7 or 0,1,2 or 0-4, got {whole!r}")
    found = range(int(first), int(last if dash else first) + 1)
    if not found:
        raise UsageError(f"expected the smaller seed first, got {whole!r}")
    # Other commands need no studies.
    from qkvary.studies.study import check_number_of_seeds

    # Not its length, which has to fit a machine word.
    check_number_of_seeds(found[-1] - found[0] + 1)
    return found
