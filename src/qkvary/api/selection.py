"""Which study, part of a study, or training a person means by a name and a few options."""

import dataclasses
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal, cast

from cyclopts import Parameter

from qkvary.api.options import AnyStudy, complete_variant, options
from qkvary.storage.environment import check_device
from qkvary.storage.errors import UsageError
from qkvary.studies.study import Study, check_number_of_seeds

if TYPE_CHECKING:
    from qkvary.studies.running.store import Store
    from qkvary.studies.running.trainings import Training

TRAINED = ("train ", "train-")
"""The prefixes of the names of trainings and of their notes."""


@options
class Where:
    """Changes to the definition of a study; the same options find its runs again."""

    seeds: Annotated[int | str | Sequence[int] | None, Parameter(name=("--seeds", "--seed"))] = None
    """Other seeds than the study's: 7 or 0,1,2 or 0-4."""
    device: str = "cpu"
    """Device: cpu, cuda, cuda:1, mps."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number format of the weights."""


@options
class Part(Where):
    """The protocol and the part of a study; the same options find its runs again."""

    protocol: str | None = None
    """A study's other protocol, such as clean."""
    tasks: Annotated[tuple[str, ...], Parameter(name="--task")] = ()
    """Only this task; repeat it for more."""
    settings: Annotated[tuple[str, ...], Parameter(name="--setting")] = ()
    """Only this setting; repeat it for more."""
    variants: Annotated[
        tuple[str, ...],
        Parameter(name=("--variant", "--variants"), completer=complete_variant),
    ] = ()
    """Only this variant and the baseline; repeat it for more."""

    def typed(self, reference: str, study: Study) -> str:
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
            "--device": _changed(study.device, PART.device),
            "--dtype": _changed(study.dtype, PART.dtype),
        }
        typed = [f"{name} {quote(one)}" for name, some in chosen.items() for one in some]
        return " ".join([quote(reference) if is_path else study.name, *typed])


PART = Part()


def _changed(value: str, default: str) -> tuple[str, ...]:
    return () if value == default else (value,)


def choose_study(given: AnyStudy, part: Part = PART) -> Study:
    """Return the study of a name or path, or the requested part of it.

    Raises:
        UsageError: for an unknown study, protocol, device or list of seeds.
        ValueError: for a task, setting or variant that the study does not have.
    """
    from qkvary.studies.catalog import load_study

    study = given.pinned() if isinstance(given, Study) else load_study(given, part.protocol)
    check_device(part.device)
    if part.tasks or part.settings or part.variants:
        study = study.select(tasks=part.tasks, settings=part.settings, variants=part.variants)
    seeds = study.seeds if part.seeds is None else read_seeds(part.seeds)
    return dataclasses.replace(study, seeds=seeds, device=part.device, dtype=part.dtype)


def choose_runs(
    store: "Store", name: AnyStudy, part: Part = PART
) -> "tuple[Study, Training | None]":
    """Return the runs of a study, or of a training by its name, and that training.

    Raises:
        UsageError: as ``choose_study``, or if no training or several have that name, or it has
            another device or dtype.
    """
    is_path = isinstance(name, str) and (name.endswith(".py") or "/" in name)
    if not isinstance(name, str) or is_path or not name.startswith(TRAINED):
        return choose_study(name, part), None
    from qkvary.studies.running.trainings import find_training

    check_device(part.device)
    for option, given in (
        ("--protocol", part.protocol),
        ("--task", part.tasks),
        ("--setting", part.settings),
        ("--variant", part.variants),
    ):
        if given:
            raise UsageError(f"expected a study with {option}, got the training {name!r}")
    found = find_training(store, name)
    # Other options would mean runs that do not exist.
    for option, given, default, noted in (
        ("--device", part.device, PART.device, found.study.device),
        ("--dtype", part.dtype, PART.dtype, found.study.dtype),
    ):
        if given not in (default, noted):
            raise UsageError(f"expected {option} {noted}, as {name!r} was trained, got {given}")
    seeds = found.study.seeds if part.seeds is None else read_seeds(part.seeds)
    return dataclasses.replace(found.study, seeds=seeds), found


def read_seeds(given: int | str | Sequence[int]) -> tuple[int, ...]:
    """Return seeds, also from text such as ``7``, ``0,1,2`` or ``0-4``.

    Raises:
        UsageError: for anything else.
    """
    if isinstance(given, str):
        ranges = [_read_range(part.strip(), given) for part in given.split(",")]
        return tuple(seed for found in ranges for seed in found)
    several = cast("Sequence[int]", [given] if isinstance(given, int) else given)
    check_number_of_seeds(len(several))
    return tuple(several)


def _read_range(part: str, whole: str) -> range:
    first, dash, last = part.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise UsageError(f"expected seeds such as 7 or 0,1,2 or 0-4, got {whole!r}")
    found = range(int(first), int(last if dash else first) + 1)
    if not found:
        raise UsageError(f"expected the smaller seed first, got {whole!r}")
    # Not its length, which has to fit a machine word.
    check_number_of_seeds(found[-1] - found[0] + 1)
    return found
