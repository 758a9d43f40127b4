"""Models by name: the networks that can be trained here, and well-known published models."""

from collections.abc import Sequence

from qkvary.arch.families.published_configs import published_configs
from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model, as_model
from qkvary.arch.named_networks import ALIASES, NETWORKS, canonical_name
from qkvary.text.names import find_name, near_names


def name_sizes() -> tuple[str, ...]:
    """Return all names, the networks of this package first."""
    return (*NETWORKS, *published_configs())


def has_size(name: str) -> bool:
    """Return whether a model of that name is known, in any spelling."""
    return _find(name) is not None


def load_size(name: str) -> Model:
    """Return the model of a name such as ``lm-300m``, ``300M`` or ``llama-3.1-8b``."""
    known = _find(name)
    if known is None:
        near = suggest_sizes(name)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else f"choices: {', '.join(name_sizes())}"
        )
        raise ValueError(f"expected a named size, got {name[:60]!r}; {hint}")
    if known in NETWORKS:
        return as_model(NETWORKS[known], name=known)
    return read_model(published_configs()[known].config, known)


def suggest_sizes(name: str) -> Sequence[str]:
    """Return the known names nearest to ``name``, best first."""
    return near_names(name, (*name_sizes(), *ALIASES), most=3, cutoff=0.7)


def _find(name: str) -> str | None:
    return canonical_name(name) or find_name(name, published_configs())
