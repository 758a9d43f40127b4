"""Readers of arguments in all their usual forms: models, checkpoints, labels, numbers, studies."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal, cast

from cyclopts import Parameter

from qkvary.api.options import (
    NETWORK,
    AnyStudy,
    Checkpoint,
    Count,
    Labels,
    NetworkOptions,
    complete_variant,
    options,
)
from qkvary.arch.labels import as_label
from qkvary.arch.models import Model, as_model
from qkvary.arch.networks import Network
from qkvary.arch.variants import AnyVariant
from qkvary.storage.environment import check_device
from qkvary.storage.errors import ResourceError, UsageError
from qkvary.storage.untrusted_files import StrPath, read_name, read_path
from qkvary.text.units import parse_share, read_count

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.studies.running.store import Store
    from qkvary.studies.study import Study
    from qkvary.studies.trainings import Training


MOST_THREADS = 1024
"""The largest accepted number of threads or processes; more is a typing error."""
TRAINED = ("train ", "train-")
"""Prefixes of the names of trainings and of their notes."""


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
    """Return a loaded model and its name; a network that is given stays on its device by default.

    ``tokenizer`` is for a checkpoint without one; ``speaks`` if one is needed.
    """
    # Counting and planning open no checkpoint.
    from qkvary.checkpoints.catalog import require_tokenizer

    loaded, name = _open(given)
    is_path = isinstance(given, str | os.PathLike)
    if tokenizer is not None or (speaks and is_path):
        reference = None if tokenizer is None else os.fspath(tokenizer)
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
    """Return variants that are given as one or several values or labels."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(map(as_label, several))


def read_threads(given: Count | None, name: str) -> int | None:
    """Return a number of threads or processes, ``None`` for ``None``."""
    number = read_count(given, name)
    if number is not None and number > MOST_THREADS:
        raise ResourceError(f"{name}: expected at most {MOST_THREADS:,}, got {number:,}")
    return number


def read_share(given: float | str, name: str) -> float:
    """Return a share, also from text such as ``10%``."""
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
    device: str = "cpu"
    """Device: cpu, cuda, cuda:1, mps."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number format of the weights."""
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
        """Return the study and the options that select its part, as one types them.

        The study's name holds the protocol; ``reference`` may be the path of its file.
        """
        is_path = reference.endswith(".py") or "/" in reference
        protocol = (self.protocol,) if is_path and self.protocol else ()
        chosen = {
            "--protocol": protocol,
            "--task": self.tasks,
            "--setting": self.settings,
            "--variant": self.variants,
            "--device": (study.device,) * (study.device != PART.device),
            "--dtype": (study.dtype,) * (study.dtype != PART.dtype),
        }
        typed = [f"{name} {quote(one)}" for name, some in chosen.items() for one in some]
        return " ".join([quote(reference) if is_path else study.name, *typed])


PART = Part()


def choose_study(given: AnyStudy, part: Part = PART) -> "Study":
    """Return the study of a name or path, or the requested part of it."""
    from qkvary.studies.catalog import load_study
    from qkvary.studies.study import Study

    study = given.pinned() if isinstance(given, Study) else load_study(given, part.protocol)
    check_device(part.device)
    if part.tasks or part.settings or part.variants:
        study = study.select(tasks=part.tasks, settings=part.settings, variants=part.variants)
    seeds = study.seeds if part.seeds is None else read_seeds(part.seeds)
    return dataclasses.replace(study, seeds=seeds, device=part.device, dtype=part.dtype)


def choose_runs(
    store: "Store", name: AnyStudy, part: Part = PART
) -> "tuple[Study, Training | None]":
    """Return the runs of a study or of a named training, and that training if there is one."""
    is_path = isinstance(name, str) and (name.endswith(".py") or "/" in name)
    if not isinstance(name, str) or is_path or not name.startswith(TRAINED):
        return choose_study(name, part), None
    from qkvary.studies.trainings import find_training

    check_device(part.device)
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
    for option, given, default, noted in (
        ("--device", part.device, PART.device, found.study.device),
        ("--dtype", part.dtype, PART.dtype, found.study.dtype),
    ):
        if given not in (default, noted):
            raise UsageError(f"expected {option} {noted}, as {name!r} was trained, got {given}")
    seeds = found.study.seeds if part.seeds is None else read_seeds(part.seeds)
    return dataclasses.replace(found.study, seeds=seeds), found


def read_seeds(given: int | str | Sequence[int]) -> tuple[int, ...]:
    """Return seeds, also from text such as ``7``, ``0,1,2`` or ``0-4``."""
    from qkvary.studies.study import check_number_of_seeds

    if not isinstance(given, str):
        several = cast("Sequence[int]", [given] if isinstance(given, int) else given)
        check_number_of_seeds(len(several))
        return tuple(several)
    seeds: list[int] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise UsageError(f"expected seeds such as 7 or 0,1,2 or 0-4, got {given!r}")
        found = range(int(first), int(last if dash else first) + 1)
        if not found:
            raise UsageError(f"expected the smaller seed first, got {given!r}")
        # Not len(found), which must fit into a machine word.
        check_number_of_seeds(found[-1] - found[0] + 1)
        seeds += found
    return tuple(seeds)
