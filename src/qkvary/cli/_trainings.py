"""Which training a person means who names what ``qkvary train`` made."""

from dataclasses import replace

from qkvary.cli._options import DEFAULT_WHERE, Where, check_device, parse_seeds
from qkvary.storage.errors import UsageError
from qkvary.studies.running.store import Store
from qkvary.studies.running.trainings import Training, find_training

TRAINED = ("train ", "train-")
"""How the names of trainings, and of their notes, begin."""


def choose_training(store: Store, name: str, where: Where) -> Training | None:
    """What ``qkvary train`` was asked for under a name; None for a name that is none of its.

    Raises:
        UsageError: if there is none of that name, or more than one, or it was made elsewhere.
    """
    if not name.startswith(TRAINED) or name.endswith(".py") or "/" in name:
        return None
    check_device(where.device)
    found = find_training(store, name)
    # How it was trained is noted: who says otherwise means runs that are not there.
    for option, asked, usual, noted in (
        ("--device", where.device, DEFAULT_WHERE.device, found.study.device),
        ("--dtype", where.dtype, DEFAULT_WHERE.dtype, found.study.dtype),
    ):
        if asked not in (usual, noted):
            raise UsageError(f"expected {option} {noted}, as {name!r} was trained, got {asked}")
    seeds = found.study.seeds if where.seeds is None else parse_seeds(where.seeds)
    return replace(found, study=replace(found.study, seeds=seeds))
