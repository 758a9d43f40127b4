"""The choice of a training by its name."""

from dataclasses import replace

from qkvary.cli._options import DEFAULT_PART, Part, parse_seeds
from qkvary.storage.environment import check_device
from qkvary.storage.errors import UsageError
from qkvary.studies.running.store import Store
from qkvary.studies.running.trainings import Training, find_training

TRAINED = ("train ", "train-")
"""The prefixes of the names of trainings and of their notes."""


def choose_training(store: Store, name: str, part: Part) -> Training | None:
    """Return the training of a name, or None if the name is not one of a training.

    Raises:
        UsageError: if none or several have that name, or it has another device or dtype.
    """
    if not name.startswith(TRAINED) or name.endswith(".py") or "/" in name:
        return None
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
        ("--device", part.device, DEFAULT_PART.device, found.study.device),
        ("--dtype", part.dtype, DEFAULT_PART.dtype, found.study.dtype),
    ):
        if given not in (default, noted):
            raise UsageError(f"expected {option} {noted}, as {name!r} was trained, got {given}")
    seeds = found.study.seeds if part.seeds is None else parse_seeds(part.seeds)
    return replace(found, study=replace(found.study, seeds=seeds))
