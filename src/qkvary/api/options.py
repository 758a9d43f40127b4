"""Parameters that several verbs share, the functions that read them, and groups of options."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, cast

from cyclopts import Parameter

from qkvary.arch.labels import as_label
from qkvary.arch.models import Model, as_model
from qkvary.arch.networks import Network
from qkvary.arch.variants import AnyVariant
from qkvary.data.checkpoint_names import RUNS
from qkvary.reports.report import ReportFormat
from qkvary.storage.environment import check_device
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import StrPath, read_name
from qkvary.text.names import typed_seeds
from qkvary.text.numbers import Reads, as_several
from qkvary.text.progress_line import ShowProgress, ignore, no_progress

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.data.tokenizers import Tokenizer
    from qkvary.nn.language_model import LanguageModel
    from qkvary.studies.running.store import Store
    from qkvary.studies.study import Study
    from qkvary.studies.trainings import NotedTraining

ShowText = Callable[[int, str, bool], None]
"""Shows generated text. The arguments are the index of the prompt, a new piece of text for it, and
True for the last piece."""


class Terminal(NamedTuple):
    """Shows what a verb does while it works; by default, nothing is shown."""

    show_progress: ShowProgress = no_progress
    """Opens a progress display."""
    say: Callable[[str], None] = ignore
    """Prints a sentence."""
    warn: Callable[[str], None] = ignore
    """Prints a warning."""
    open_texts: Callable[[Sequence[str]], ShowText] = lambda _prompts: ignore
    """Returns the function that shows the texts. Called with the prompts, after all arguments are
    checked."""
    command: str | None = None
    """The command as it was typed; None if the verb was called in Python."""

    def __repr__(self) -> str:
        return "Terminal()"


SILENT = Terminal()


# ---- readers of arguments


def find_model(given: object, _name: str = "") -> Model:
    """Return the model that a name, file, hub id, value or network denotes."""
    if isinstance(given, str | os.PathLike):
        # Its table of published models takes longer to read than most verbs take.
        from qkvary.checkpoints.catalog import find_reference

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


def read_labels(given: object, _name: str) -> tuple[AnyVariant, ...]:
    """Return a tuple of variants, given as one label, one variant, or a sequence of these."""
    try:
        return tuple(as_label(cast("AnyVariant | str", one)) for one in as_several(given))
    except ValueError as error:
        # A comma belongs to a label, as in q,k=v.
        hint = "; to give several variants, put spaces between them" if "," in str(given) else ""
        raise UsageError(f"{error}{hint}") from None


def read_seeds(given: object, _name: str) -> tuple[int, ...]:
    """Return seeds, given as numbers or as text such as ``7``, ``0,1,2`` or ``0-4``."""
    from qkvary.studies.study import MOST_SEEDS, check_number_of_seeds

    # One more than is allowed, so that an endless iterable is refused too.
    parts = map(str, islice(as_several(given), MOST_SEEDS + 1))
    seeds: list[int] = []
    for part in ",".join(parts).split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise UsageError(f"expected seeds such as 7 or 0,1,2 or 0-4, got {given!r}")
        found = range(int(first), int(last if dash else first) + 1)
        if not found:
            raise UsageError(f"expected the smaller seed first, got {given!r}")
        # Not len(found), which must fit into a machine word.
        check_number_of_seeds(len(seeds) + found[-1] - found[0] + 1)
        seeds += found
    return tuple(seeds)


# ---- annotations

Checkpoint = Annotated[
    "StrPath | LoadedModel | tuple[LanguageModel, Tokenizer | None]",
    Parameter(
        help="A name (tiny, tiny-k), a run of train by its folder or the start of its key, or a "
        "folder or file: our own, a .gguf, a llama2.c .bin, a character model. In Python also what "
        "qk.load returned.",
    ),
]
CheckpointTokenizer = Annotated[
    str | None,
    Parameter(
        help="For a checkpoint without a tokenizer: gpt2, bytes, a tokenizer.json, tok512.bin or "
        ".model."
    ),
]
AnyModel = Annotated[
    Model,
    Reads(find_model),
    Parameter(
        help="A named size (gpt2, llama-3.1-8b, 300M), a config.json or its folder, a checkpoint "
        "(.gguf, .bin, a folder), or a hub id. In Python also a configuration or a network.",
    ),
]
Labels = Annotated[tuple[AnyVariant, ...], Reads(read_labels, typed=tuple[str, ...])]
"""One variant or several, each given as a value or by its label."""
Variants = Annotated[
    Labels,
    Parameter(name=("--variant", "--variants"), consume_multiple=(1, None)),
]
"""The variants that a verb compares."""
Seeds = Annotated[tuple[int, ...], Reads(read_seeds), Parameter(name=("--seeds", "--seed"))]
Texts = Annotated[tuple[Path, ...], Parameter(consume_multiple=(1, None))]
"""Files or folders of texts."""
AnyStudy = Union[StrPath, "Study"]
"""A study: its name, the path of a Python file that defines ``STUDY``, or a ``Study``."""
Formats = Annotated[tuple[ReportFormat, ...], Parameter(name="--format")]


NetworkDtype = Literal["float64", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Options for the device and the number format of a network."""

    device: str | None = None
    """Device: cpu, cuda, cuda:1, mps. If not given, a checkpoint is loaded on the CPU."""
    dtype: NetworkDtype | None = None
    """Number format of the weights; as stored if not given."""
    weights: Literal["int8"] | None = None
    """Quantise the weight matrices to 8 bits; not quantised if not given."""


NETWORK = NetworkOptions()


# ---- checkpoints and studies


def open_checkpoint(
    given: Checkpoint,
    tokenizer: str | None = None,
    options: NetworkOptions = NETWORK,
    *,
    speaks: bool = False,
) -> "tuple[LoadedModel, str]":
    """Return a loaded model and its name.

    ``given`` may be a network, which stays on its device by default. ``tokenizer`` is used for a
    checkpoint that has no tokenizer. If ``speaks`` is true, a model without a tokenizer is refused.
    """
    # Counting and planning open no checkpoint.
    from qkvary.checkpoints.catalog import load_checkpoint, require_tokenizer

    is_path = isinstance(given, str | os.PathLike)
    if is_path:
        name = read_name(given, "the name or path of a checkpoint")
        loaded = load_checkpoint(name)
    else:
        name, loaded = "the given network", _as_loaded(given)
    if tokenizer is not None or (speaks and is_path):
        loaded, _ = require_tokenizer(loaded, name, tokenizer)
    if speaks and loaded.tokenizer is None:
        raise UsageError("expected a checkpoint with a tokenizer, got one without")
    if is_path or any((options.device, options.dtype, options.weights)):
        device = options.device or str(next(loaded.network.parameters()).device)
        loaded = loaded.to(device, options.dtype, options.weights)
    return loaded, name


def _as_loaded(given: object) -> "LoadedModel":
    # A checkpoint's name is completed and refused without torch.
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.data.tokenizers import Tokenizer
    from qkvary.nn.language_model import LanguageModel

    match given:
        case (LanguageModel() as network, None | Tokenizer() as tokenizer):
            return LoadedModel(network, tokenizer)
        case tuple():
            found = f"({', '.join(type(one).__name__ for one in cast('tuple[object]', given))})"
        case _:
            found = type(given).__name__
    raise UsageError(
        "expected the name or path of a checkpoint, or a network with its tokenizer as qk.load "
        f"returns them, got {found}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Options that choose the protocol of a study and a part of the study.

    The same options select the same runs in another command.
    """

    seeds: Seeds | None = None
    """Seeds to use instead of the study's: 7 or 0,1,2 or 0-4."""
    device: str | None = None
    """Device: cpu, cuda, cuda:1, mps; the study's own if not given, usually cpu."""
    dtype: Literal["float32", "float64"] | None = None
    """Number format of the weights; the study's own if not given, usually float32."""
    protocol: str | None = None
    """Protocol (version) of the study, such as clean; its usual protocol if not given."""
    tasks: Annotated[tuple[str, ...], Parameter(name="--task")] = ()
    """Only this task (can be repeated)."""
    settings: Annotated[tuple[str, ...], Parameter(name="--setting")] = ()
    """Only this setting (can be repeated)."""
    variants: Annotated[tuple[str, ...], Parameter(name=("--variant", "--variants"))] = ()
    """Only this variant and the baseline (can be repeated)."""

    def write_command(self, verb: str, study: AnyStudy, out: Path) -> str:
        """Return the command for this part of a study, or the call in Python for a ``Study``."""
        if not isinstance(study, str | os.PathLike):
            return write_call(verb, "STUDY", self, out=os.fspath(out))
        options = {
            "--protocol": (self.protocol,),
            "--task": self.tasks,
            "--setting": self.settings,
            "--variant": self.variants,
            "--device": (self.device,),
            "--dtype": (self.dtype,),
            "--seeds": () if self.seeds is None else (typed_seeds(self.seeds),),
            "--out": () if out == RUNS else (os.fspath(out),),
        }
        typed = [f"{name} {quote(one)}" for name, some in options.items() for one in some if one]
        return " ".join(["qkvary", verb, quote(os.fspath(study)), *typed])

    def write_commands(self, study: AnyStudy, seeds: Sequence[int], out: Path) -> tuple[str, str]:
        """Return the commands that train this part of a study again and that write its report."""
        part = replace(self, seeds=tuple(seeds))
        return part.write_command("study", study, out), part.write_command("report", study, out)


PART = Part()


def write_call(verb: str, first: str, options: object, **given: object) -> str:
    """Return the Python call of a verb, with the options that differ from their defaults."""
    for one in fields(cast("Any", options)):
        if (value := getattr(options, one.name)) != one.default:
            given[one.name] = value
    words = (f"{name}={value!r}" for name, value in given.items())
    return f"qk.{verb}({', '.join([first, *words])})"


def choose_study(
    given: AnyStudy, part: Part = PART, others: Callable[[], Iterable[str]] = tuple
) -> "Study":
    """Return the requested part of a study. ``given`` is the study, or its name or path.

    The error for an unknown name lists the names that ``others`` returns too.
    """
    from qkvary.studies.catalog import load_study
    from qkvary.studies.study import Study

    is_study = isinstance(given, Study)
    study = given.pinned() if is_study else load_study(given, part.protocol, others)
    device, dtype = part.device or study.device, part.dtype or study.dtype
    check_device(device)
    if part.tasks or part.settings or part.variants:
        study = study.select(tasks=part.tasks, settings=part.settings, variants=part.variants)
    seeds = study.seeds if part.seeds is None else part.seeds
    return replace(study, seeds=seeds, device=device, dtype=dtype)


def choose_runs(
    store: "Store", name: AnyStudy, part: Part = PART
) -> "tuple[Study, NotedTraining | None]":
    """Return the study that ``name`` names, and the training if it is the study of a training.

    The second value is None for other studies. The study of a training, which ``qkvary train``
    makes, consists of the runs of the training.
    """
    from qkvary.studies.trainings import find_training, training_names

    # A training has a name such as ``train lm on x.py``, and a note such as ``train-lm-on-x-py``.
    is_note = str(name).startswith("train-") and not re.search(r"/|\.py$", str(name))
    if not isinstance(name, str) or not (name.startswith("train ") or is_note):
        return choose_study(name, part, partial(training_names, store)), None
    training = find_training(store, name)
    return choose_study(training.study, part), training
