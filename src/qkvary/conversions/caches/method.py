"""What a method of conversion is; methods are found by the names of their files."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from qkvary.arch.attention import AttentionConfig
from qkvary.storage.errors import UsageError
from qkvary.storage.paths import read_name
from qkvary.text.names import suggest

if TYPE_CHECKING:
    from torch import Tensor

    from qkvary.conversions.caches.layer_maps import LayerMaps, Weights

_FOLDER = Path(__file__).parent / "methods"


class Converted(NamedTuple):
    """A converted layer."""

    weights: "Weights"
    """The parameters of its projections, in float64."""
    lost: float | None = None
    """The share of the spectrum of keys and values that is left out, where the method has one."""
    spectrum: "Tensor | None" = None
    """That share by the channels of the one tensor of a layer, from none on."""


class Method(Protocol):
    """The interface of every module in ``methods``."""

    STATEMENT: str
    """The new form, as a clause of a sentence."""

    def choose(self, layer: AttentionConfig, numbers: int, /) -> AttentionConfig:
        """Return the layer with at most so many numbers of a token in its cache.

        Raises:
            UsageError: if there is no such form; the message lists the choices.
        """
        ...

    def convert(self, maps: "LayerMaps", config: AttentionConfig, /) -> Converted:
        """Return the weights of a layer that ``choose`` returned."""
        ...


def method_names() -> tuple[str, ...]:
    """Return the names of all methods, sorted."""
    stems = (path.stem for path in _FOLDER.glob("*.py"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems if stem[0] != "_"))


def load_method(name: str) -> Method:
    """Return the module of a method.

    Raises:
        UsageError: for an unknown name.
    """
    name = read_name(name, "the name of a method")
    if name not in method_names():
        raise UsageError(f"unknown method {name!r}; {suggest(name, method_names())}")
    path = f"qkvary.conversions.caches.methods.{name.replace('-', '_')}"
    return cast("Method", import_module(path))
