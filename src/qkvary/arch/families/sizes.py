"""Named sizes: the papers' own networks, and well-known published models."""

import difflib
from collections.abc import Callable, Sequence

from qkvary.arch.families.published_configs import PUBLISHED_CONFIGS
from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model, as_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.published_networks import gpt_124m, gpt_300m, gpt_1200m

PAPER_NETWORKS: dict[str, Callable[[], LanguageModelConfig]] = {
    "124M": gpt_124m,
    "300M": gpt_300m,
    "1.2B": gpt_1200m,
}
"""The papers' networks, by the names that they use."""


def name_sizes() -> tuple[str, ...]:
    """Return all names, the papers' own networks first."""
    return (*PAPER_NETWORKS, *PUBLISHED_CONFIGS)


def has_size(name: str) -> bool:
    """Return whether a size of that name is known, in capitals or not."""
    return _find(name) is not None


def load_size(name: str) -> Model:
    """Return the model of a name.

    Args:
        name: For example ``300M`` or ``llama-3.1-8b``, in capitals or not.

    Raises:
        ValueError: for an unknown name, with the nearest known ones.
    """
    known = _find(name)
    if known is None:
        near = suggest_sizes(name)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else f"choices: {', '.join(name_sizes())}"
        )
        raise ValueError(f"expected a named size, got {name[:60]!r}; {hint}")
    if known in PAPER_NETWORKS:
        return as_model(PAPER_NETWORKS[known](), name=known)
    return read_model(PUBLISHED_CONFIGS[known].fields, known)


def suggest_sizes(name: str) -> Sequence[str]:
    """Return the known names nearest to one, best first."""
    spelled = {known.casefold(): known for known in name_sizes()}
    near = difflib.get_close_matches(name[:60].casefold(), spelled, n=3, cutoff=0.7)
    return [spelled[match] for match in near]


def _find(name: str) -> str | None:
    wanted = name.casefold()
    return next((known for known in name_sizes() if known.casefold() == wanted), None)
