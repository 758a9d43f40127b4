"""Parameters that several verbs share, functions that read them, and groups of options.

An annotation may hold a ``cyclopts.Parameter`` for what a type cannot express: another spelling, or
shell completion. Types in quotes (``"Study"``) are for Python; the command line passes text.
"""

import dataclasses
import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
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
    get_args,
    get_type_hints,
    overload,
)

from cyclopts import Parameter

from qkvary.api.arguments import read_arguments
from qkvary.arch.labels import as_label
from qkvary.arch.models import Model, as_model
from qkvary.arch.networks import Network
from qkvary.arch.table import VARIANTS
from qkvary.arch.variants import AnyVariant
from qkvary.data.checkpoint_names import checkpoint_names, packaged_names
from qkvary.reports.report import ReportFormat
from qkvary.storage.environment import check_device
from qkvary.storage.errors import ResourceError, UsageError
from qkvary.storage.untrusted_files import StrPath, read_name, read_path
from qkvary.text.numbers import parse_share, read_count
from qkvary.text.progress_line import ShowProgress, no_progress

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from qkvary.checkpoints.models import LoadedModel
    from qkvary.data.tokenizers import Tokenizer
    from qkvary.nn.language_model import LanguageModel
    from qkvary.studies.running.store import Store
    from qkvary.studies.study import Study
    from qkvary.studies.trainings import Training

T = TypeVar("T")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(group: type[T]) -> type[T]:
    """Make a class a group of options; the docstring under each field is the option's help."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(group)


class Verb(Protocol[P, R_co]):
    """A function that also takes the fields of its options as separate keywords."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> R_co: ...


def takes_options(function: Callable[P, R_co]) -> Verb[P, R_co]:
    """Let a function take the fields of its options as separate keywords, by any spelling.

    ``plan(model, gpu="t4")`` is ``plan(model, hardware=Hardware(gpu="t4"))``, and the spellings of
    the command line are keywords too (``variant`` for ``variants``). The signature shows the
    fields: it is what ``help`` prints and the command line offers.
    """
    own = inspect.signature(function)
    groups = option_groups(function)
    owners = {one.name: name for name, group in groups.items() for one in dataclasses.fields(group)}

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for name in spellings.keys() & given.keys():
            if spellings[name] in given:
                raise TypeError(f"got {name} and {spellings[name]}, which are one parameter")
            given[spellings[name]] = given.pop(name)
        for name in groups.keys() & given.keys():
            given = _fields_of(given.pop(name), name, type(groups[name])) | given
        read, given = read_arguments(shown, args, given)
        changed: dict[str, dict[str, Any]] = {}
        for name in owners.keys() & given.keys():
            changed.setdefault(owners[name], {})[name] = given.pop(name)
        for name, values in changed.items():
            given[name] = dataclasses.replace(groups[name], **values)
        return cast("Any", function)(*read, **given)

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
    spellings = {
        spelling.removeprefix("--"): one.name
        for one in parameters
        for part in get_args(one.annotation)
        if isinstance(part, Parameter)
        for spelling in part.name or ()
        if spelling[2:] not in {*own.parameters, *owners}
    }
    shown = {one.name: one for one in parameters}
    made = cast("Any", call)
    made.__signature__ = own.replace(parameters=parameters)
    return made


def _fields_of(given: object, name: str, kind: type) -> dict[str, Any]:
    """Return the fields of a group of options, by name."""
    if not isinstance(given, kind):
        raise UsageError(f"{name}: expected a value of {kind.__name__}, got {given!r}"[:200])
    return {one.name: getattr(given, one.name) for one in dataclasses.fields(cast("Any", kind))}


def option_groups(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the default of each parameter that is a group of options, by parameter name."""
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


def say_nothing(_sentence: str) -> None:
    """Do nothing: the default without a terminal."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The functions that show a verb's progress, messages and warnings; by default none do."""

    show_progress: ShowProgress = no_progress
    say: Callable[[str], None] = say_nothing
    warn: Callable[[str], None] = say_nothing
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
    """The device and the number format of a network."""

    device: str | None = None
    """Device: cpu, cuda, cuda:1, mps. If not given, a checkpoint is loaded on the CPU."""
    dtype: NetworkDtype | None = None
    """Number format of the weights; as stored if not given."""
    weights: Literal["int8"] | None = None
    """Quantise the weight matrices to 8 bits; not quantised if not given."""


NETWORK = NetworkOptions()


# ---- readers of arguments


MOST_THREADS = 1024
"""The largest accepted number of threads or processes; a larger number must be a typing slip."""
TRAINED = ("train ", "train-")
"""Prefixes of the names of trainings (``train ``) and of their files in the store (``train-``)."""


def find_model(given: object) -> Model:
    """Return the model that a name, file, hub id, value or network denotes."""
    if isinstance(given, str | os.PathLike):
        # Its table of published models takes longer to read than most verbs take.
        from qkvary.checkpoints.reference_models import find_reference

        return find_reference(cast("str | os.PathLike[str]", given))
    if isinstance(given, Model):
        return given
    network = getattr(given, "network", given)
    config = getattr(network, "config", network)
    if not isinstance(config, Network):
        raise UsageError(
            f"expected a model as its name, its path, a configuration or a network, got {given!r}"
        )
    return as_model(config)


def open_checkpoint(
    given: Checkpoint,
    tokenizer: StrPath | None = None,
    options: NetworkOptions = NETWORK,
    *,
    speaks: bool = False,
) -> "tuple[LoadedModel, str]":
    """Return a loaded model and its name; by default a given network stays on its device.

    ``tokenizer`` is for a checkpoint that has none. With ``speaks``, a tokenizer is required.
    """
    # Counting and planning open no checkpoint.
    from qkvary.checkpoints.catalog import require_tokenizer

    loaded, name = _open(given)
    is_path = isinstance(given, str | os.PathLike)
    if tokenizer is not None or (speaks and is_path):
        reference = None if tokenizer is None else read_name(tokenizer, "a tokenizer")
        loaded, _ = require_tokenizer(loaded, name, reference)
    if speaks and loaded.tokenizer is None:
        raise UsageError("expected a checkpoint with a tokenizer, got one without")
    if is_path or any((options.device, options.dtype, options.weights)):
        device = options.device or str(next(loaded.network.parameters()).device)
        loaded = loaded.to(device, options.dtype, options.weights)
    return loaded, name


def _open(given: object) -> "tuple[LoadedModel, str]":
    if isinstance(given, str | os.PathLike):
        name = read_name(cast("object", given), "the name or path of a checkpoint")
        from qkvary.checkpoints.catalog import load_checkpoint

        return load_checkpoint(name), name
    # A checkpoint's name is completed and refused without torch.
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.data.tokenizers import Tokenizer
    from qkvary.nn.language_model import LanguageModel

    pair = cast("tuple[object, ...]", given) if isinstance(given, tuple) else ()
    match pair:
        case (LanguageModel() as network, None | Tokenizer() as tokenizer):
            return LoadedModel(network, tokenizer), "the given network"
        case _:
            kinds = ", ".join(type(one).__name__ for one in pair)
            raise ValueError(
                "expected the name or path of a checkpoint, or a network with its tokenizer as "
                f"qk.load returns them, got {f'({kinds})' if pair else type(given).__name__}"
            )


def read_labels(given: Labels) -> tuple[AnyVariant, ...]:
    """Return the variants of a label, a variant, or a sequence of labels and variants."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(map(as_label, several))


def read_threads(given: Count | None, name: str) -> int | None:
    """Read a number of threads or processes; ``None`` stays ``None``."""
    number = read_count(given, name)
    if number is not None and number > MOST_THREADS:
        raise ResourceError(f"{name}: expected at most {MOST_THREADS:,}, got {number:,}")
    return number


def read_share(given: float | str, name: str) -> float:
    """Read a share, given as a number or as text such as ``10%``."""
    try:
        return parse_share(str(given))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def read_texts(given: object) -> tuple[Path, ...]:
    """Return the paths of one or several texts."""
    several = cast("Sequence[object]", given) if isinstance(given, list | tuple) else [given]
    return tuple(read_path(path, "a file or folder of texts") for path in several)


@options
class Part:
    """The protocol and part of a study; repeat the same options to find its runs again."""

    seeds: Annotated[int | str | Sequence[int] | None, Parameter(name=("--seeds", "--seed"))] = None
    """Seeds to use instead of the study's: 7 or 0,1,2 or 0-4."""
    device: str | None = None
    """Device: cpu, cuda, cuda:1, mps; the study's own if not given, usually cpu."""
    dtype: Literal["float32", "float64"] | None = None
    """Number format of the weights; the study's own if not given, usually float32."""
    protocol: str | None = None
    """Another protocol of the study, such as clean."""
    tasks: Annotated[tuple[str, ...], Parameter(name="--task")] = ()
    """Only this task (can be repeated)."""
    settings: Annotated[tuple[str, ...], Parameter(name="--setting")] = ()
    """Only this setting (can be repeated)."""
    variants: Annotated[
        tuple[str, ...],
        Parameter(name=("--variant", "--variants"), completer=complete_variant),
    ] = ()
    """Only this variant and the baseline (can be repeated)."""

    def typed(self, reference: str, study: "Study") -> str:
        """Return the study and the options that select its part, as typed on a command line.

        The name of a study includes its protocol. If ``reference`` is the path of the study's file,
        the file determines device and dtype, which are then omitted unless given as options.
        """
        is_path = reference.endswith(".py") or "/" in reference
        protocol = (self.protocol,) if is_path and self.protocol else ()
        device, dtype = self.device, self.dtype
        if not is_path:
            device = device or (study.device if study.device != "cpu" else None)
            dtype = dtype or (study.dtype if study.dtype != "float32" else None)
        chosen = {
            "--protocol": protocol,
            "--task": self.tasks,
            "--setting": self.settings,
            "--variant": self.variants,
            "--device": (device,) if device else (),
            "--dtype": (dtype,) if dtype else (),
        }
        typed = [f"{name} {quote(one)}" for name, some in chosen.items() for one in some]
        return " ".join([quote(reference) if is_path else study.name, *typed])


PART = Part()


def choose_study(given: AnyStudy, part: Part = PART) -> "Study":
    """Return a study, given by name, path or value, restricted to the requested part."""
    from qkvary.studies.catalog import load_study
    from qkvary.studies.study import Study

    study = given.pinned() if isinstance(given, Study) else load_study(given, part.protocol)
    device, dtype = part.device or study.device, part.dtype or study.dtype
    check_device(device)
    if part.tasks or part.settings or part.variants:
        study = study.select(tasks=part.tasks, settings=part.settings, variants=part.variants)
    seeds = study.seeds if part.seeds is None else read_seeds(part.seeds)
    return dataclasses.replace(study, seeds=seeds, device=device, dtype=dtype)


def choose_runs(
    store: "Store", name: AnyStudy, part: Part = PART
) -> "tuple[Study, Training | None]":
    """Return a study, and the training if ``name`` names a training: then the study is its runs."""
    is_path = isinstance(name, str) and (name.endswith(".py") or "/" in name)
    if not isinstance(name, str) or is_path or not name.startswith(TRAINED):
        return choose_study(name, part), None
    from qkvary.studies.trainings import find_training

    for option, given in (
        ("--protocol", part.protocol),
        ("--task", part.tasks),
        ("--setting", part.settings),
        ("--variant", part.variants),
    ):
        if given:
            raise UsageError(f"expected a study for {option}, got the training {name!r}")
    found = find_training(store, name)
    # Another device or dtype would select runs that do not exist.
    for option, given, noted in (
        ("--device", part.device, found.study.device),
        ("--dtype", part.dtype, found.study.dtype),
    ):
        if given not in (None, noted):
            raise UsageError(f"expected {option} {noted}, as {name!r} was trained, got {given}")
    seeds = found.study.seeds if part.seeds is None else read_seeds(part.seeds)
    return dataclasses.replace(found.study, seeds=seeds), found


def read_seeds(given: int | str | Sequence[int]) -> tuple[int, ...]:
    """Read seeds, given as numbers or as text such as ``7``, ``0,1,2`` or ``0-4``."""
    from qkvary.studies.study import check_number_of_seeds

    expected = "expected seeds such as 7 or 0,1,2 or 0-4"
    if not isinstance(given, str):
        try:
            several = given if isinstance(given, Iterable) else [given]
            check_number_of_seeds(len(several))
            return tuple(map(operator.index, several))
        except TypeError:
            raise UsageError(f"{expected}, got {given!r}") from None
    seeds: list[int] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise UsageError(f"{expected}, got {given!r}")
        found = range(int(first), int(last if dash else first) + 1)
        if not found:
            raise UsageError(f"expected the smaller seed first, got {given!r}")
        # Not len(found), which must fit into a machine word.
        check_number_of_seeds(found[-1] - found[0] + 1)
        seeds += found
    return tuple(seeds)
