"""The choice of a training by its name."""

from dataclasses import replace

from qkvary.cli._options import DEFAULT_WHERE, Where, check_device, parse_seeds
from qkvary.storage.errors import UsageError
from qkvary.studies.running.store import Store
from qkvary.studies.running.trainings import Training, find_training

TRAINED = ("train ", "train-")
"""The prefixes of the names of trainings and of their notes."""


def choose_training(store: Store, name: str, where: Where) -> Training | None:
    """Return the training of a name, or None if the name is not one of a training.

    Raises:
        UsageError: if none or several have that name, or it has another device or dtype.
    """
    if not name.startswith(TRAINED) or name.endswith(".py") or "/" in name:
        return None
    check_device(where.device)
    found = find_training(store, name)
    # Other options would mean runs that do not exist.
    for option, given, default, noted in (
        ("--device", where.device, DEFAULT_WHERE.device, found.study.device),
        ("--dtype", where.dtype, DEFAULT_WHERE.dtype, found.study.dtype),
    ):
        if given not in (default, noted):
            raise UsageError(f"expected {option} {noted}, as {name!r} was trained, got {given}")
    seeds = found.study.seeds if where.seeds is None else parse_seeds(where.seeds)
    return replace(found, study=replace(found.study, seeds=seeds))
