"""Checks that a network still matches its configuration.

A stored model is rebuilt from its configuration, so replaced or added layers would be lost.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from qkvary.arch.networks import LanguageModelConfig
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError

_LISTED = 3


def check_structure(network: LanguageModel) -> None:
    """Refuse a network that differs from the network that its configuration describes."""
    with torch.device("meta"):
        built = make_language_model(network.config)
    expected, found = _modules(built), _modules(network)
    for name, module in found.items():
        own, wanted = type(module), type(expected[name]) if name in expected else None
        # FSDP makes subclasses with the same ``forward``.
        if wanted is None or not issubclass(own, wanted) or own.forward is not wanted.forward:
            kind = "nothing" if wanted is None else wanted.__name__
            given = own.__name__ if own.__name__ != kind else f"{own.__module__}.{kind}"
            _refuse(f"{given} at {name} instead of {kind}")
    for name in expected.keys() - found.keys():
        _refuse(f"nothing at {name} instead of {type(expected[name]).__name__}")
    is_coded = any(tensor.dtype == torch.int8 for tensor in network.parameters())
    differences = () if is_coded else list_differences(built.state_dict(), network.state_dict())
    if differences:
        _refuse(name_some(differences))


def make_language_model(config: LanguageModelConfig) -> LanguageModel:
    """Build the network of a configuration, with its ``make`` method if it has one."""
    make: Callable[[int], LanguageModel] | None = getattr(config, "make", None)
    return LanguageModel(config) if make is None else make(0)


def list_differences(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """Return the differences in names and shapes of parameters, one clause each."""
    return [
        *(f"{name} is missing" for name in sorted(expected.keys() - found.keys())),
        *(f"{name} is not known" for name in sorted(found.keys() - expected.keys())),
        *(
            f"{name} is {list(found[name].shape)} instead of {list(expected[name].shape)}"
            for name in sorted(expected.keys() & found.keys())
            if expected[name].shape != found[name].shape
        ),
    ]


def name_some(differences: list[str]) -> str:
    """Return a text with the first few clauses and the number of remaining clauses."""
    left = len(differences) - _LISTED
    return ", ".join(differences[:_LISTED]) + (f" and {left} more" if left > 0 else "")


def _modules(network: nn.Module) -> dict[str, nn.Module]:
    named = network.named_modules()
    return {name: part for name, part in named if "parametrizations" not in name.split(".")}


def _refuse(difference: str) -> None:
    raise UsageError(
        "expected a network whose layers match its configuration, got a difference: "
        f"{difference}; merge added layers (such as adapters) into the weights, or save "
        "model.state_dict() with torch.save"
    )
