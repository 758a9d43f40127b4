"""The parameters that several verbs share, and options values for verbs with many.

An annotation may hold a ``cyclopts.Parameter`` for what a type cannot say: another spelling, what
the shell completes. A quoted type is one that only Python can pass; the command line passes text.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    dataclass_transform,
    get_type_hints,
    overload,
)

from cyclopts import Parameter

from qkvary.arch.table import VARIANTS
from qkvary.arch.variants import AnyVariant
from qkvary.data.checkpoint_names import checkpoint_names, packaged_names
from qkvary.reports.report import ReportFormat
from qkvary.storage.untrusted_files import StrPath

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext
    from rich.console import Console

    from qkvary.arch.models import Model
    from qkvary.arch.networks import Network
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.data.tokenizers import Tokenizer
    from qkvary.nn.language_model import LanguageModel
    from qkvary.studies.study import Study

T = TypeVar("T")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(group: type[T]) -> type[T]:
    """Make a class a value of options; the docstring under each field is its help."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(group)


class Verb(Protocol[P, R_co]):
    """A function that also takes the fields of its options as separate keywords."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> R_co: ...


def takes_options(function: Callable[P, R_co]) -> Verb[P, R_co]:
    """Let a function take the fields of its options as separate keywords.

    ``plan(model, gpu="t4")`` is ``plan(model, hardware=Hardware(gpu="t4"))``. The signature shows
    the fields: it is what ``help`` prints and the command line offers.
    """
    own = inspect.signature(function)
    groups = option_groups(function)
    owners = {one.name: name for name, group in groups.items() for one in dataclasses.fields(group)}

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        changed: dict[str, dict[str, Any]] = {}
        for name in owners.keys() & given.keys():
            changed.setdefault(owners[name], {})[name] = given.pop(name)
        for name, values in changed.items():
            given[name] = dataclasses.replace(given.get(name, groups[name]), **values)
        return cast("Any", function)(*args, **given)

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        if name not in groups:
            parameters.append(parameter)
            continue
        kinds = get_type_hints(type(groups[name]), include_extras=True)
        parameters += [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(groups[name], one.name),
                annotation=kinds[one.name],
            )
            for one in dataclasses.fields(groups[name])
        ]
    made = cast("Any", call)
    made.__signature__ = own.replace(parameters=parameters)
    return made


def option_groups(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the options values of a function by the names of their parameters."""
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if dataclasses.is_dataclass(parameter.default)
    }


def complete_study(_context: object) -> Iterator[str]:
    """Yield the names of studies, for the shell."""
    # Other verbs need no studies.
    from qkvary.studies.catalog import study_names

    yield from study_names()


def complete_variant(_context: object) -> Iterator[str]:
    """Yield the labels of the variants, for the shell."""
    yield from (one.label for one in VARIANTS)


def complete_model(_context: object) -> Sequence[str]:
    """Return the names of models, for the shell."""
    from qkvary.arch.families.sizes import name_sizes

    return (*name_sizes(), *packaged_names())


def complete_checkpoint(context: "CompletionContext") -> Iterator[str]:
    """Yield the names of checkpoints and matching paths, for the shell."""
    yield from checkpoint_names()
    folder = context.incomplete[: context.incomplete.rfind("/") + 1]
    with suppress(OSError), os.scandir(folder or ".") as entries:
        yield from (f"{folder}{one.name}{'/' if one.is_dir() else ''}" for one in entries)


class Configured(Protocol):
    """A network that was built, such as ``qk.LanguageModel``."""

    @property
    def config(self) -> "Network":
        """Its configuration."""
        ...


Display = AbstractContextManager[Callable[..., None]]
"""An open progress display: called with the finished units, their total, and a note."""
ShowProgress = Callable[..., Display]
"""Opens a progress display; called with the name of the work and the name of its unit."""


def no_progress(_what: str, _unit: str = "windows") -> Display:
    """Open no display."""
    return nullcontext(lambda *_counts: None)


def say_nothing(_sentence: str) -> None:
    """Show no sentence."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The progress, messages and warnings of a long verb; none by default."""

    show_progress: ShowProgress = no_progress
    say: Callable[[str], None] = say_nothing
    warn: Callable[[str], None] = say_nothing
    screen: "Console | None" = None
    """The console on which progress and messages appear; None for none."""
    command: str = ""


Checkpoint = Annotated[
    "StrPath | LoadedModel | tuple[LanguageModel, Tokenizer | None]",
    Parameter(
        help="A name (tiny, tiny-k), a run of train by its folder or the start of its key, or a "
        "folder or file: our own, a .gguf, a llama2.c .bin, a character model. In Python also what "
        "qk.load returned.",
        completer=complete_checkpoint,
    ),
]
CheckpointTokenizer = Annotated[
    StrPath | None,
    Parameter(
        help="For a checkpoint without a tokenizer: gpt2, bytes, a tokenizer.json, tok512.bin or "
        ".model."
    ),
]
AnyModel = Annotated[
    "StrPath | Model | Network | Configured",
    Parameter(
        help="A named size (gpt2, llama-3.1-8b, 300M), a config.json or its folder, a checkpoint "
        "(.gguf, .bin, a folder), or a hub id. In Python also a configuration or a network.",
        completer=complete_model,
    ),
]
Labels = str | AnyVariant | Sequence[str | AnyVariant]
"""One variant or several, each as a value or by its label."""
Variants = Annotated[
    Labels,
    Parameter(
        name=("--variant", "--variants"), consume_multiple=(1, None), completer=complete_variant
    ),
]
"""The variants that a verb compares."""
Texts = Annotated[StrPath | Sequence[StrPath], Parameter(consume_multiple=(1, None))]
Count = int | str
"""A number of tokens, sequences or users, also as text: 32k is 32,768."""
Share = float | str
"""A fraction, or a percentage as text: 10%."""
AnyStudy = Annotated["StrPath | Study", Parameter(completer=complete_study)]
"""A study: its name, the path of a Python file that defines ``STUDY``, or a ``Study``."""
Formats = Annotated[tuple[ReportFormat, ...], Parameter(name="--format")]


NetworkDtype = Literal["float64", "float32", "bfloat16", "float16"]


@options
class NetworkOptions:
    """The device and the numbers of a network."""

    device: str | None = None
    """Device: cpu, cuda, cuda:1, mps. If not given, a checkpoint is loaded on the CPU."""
    dtype: NetworkDtype | None = None
    """Number format of the weights; as stored if not given."""
    weights: Literal["int8"] | None = None
    """Quantise the weight matrices to 8 bits; not quantised if not given."""


NETWORK = NetworkOptions()
