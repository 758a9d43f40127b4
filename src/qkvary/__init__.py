"""Transformers whose attention shares its query, key and value projections.

``import qkvary as qk`` offers the names below. Each is loaded on first use, so that importing this
package imports nothing else; nothing in the package imports the package itself. The longer paths
are listed in docs/guide/api.md.
"""

from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkvary.api.analyses import analyze
    from qkvary.api.conversions import convert
    from qkvary.api.costs import cost
    from qkvary.api.models import load
    from qkvary.api.plans import plan
    from qkvary.api.studies import run_study
    from qkvary.api.texts import evaluate, generate
    from qkvary.api.training import train
    from qkvary.api.variants import variants
    from qkvary.nn.attention import Attention
    from qkvary.nn.cache import KVCache
    from qkvary.nn.language_model import LanguageModel
    from qkvary.studies.pretraining import TrainingOptions
    from qkvary.studies.running.executors.contract import ClusterOptions
    from qkvary.studies.study import Setting, Study

    __version__: str

__all__ = [
    "Attention",
    "ClusterOptions",
    "KVCache",
    "LanguageModel",
    "Setting",
    "Study",
    "TrainingOptions",
    "analyze",
    "convert",
    "cost",
    "evaluate",
    "generate",
    "load",
    "plan",
    "run_study",
    "train",
    "variants",
]

_MODULES = {
    "Attention": "nn.attention",
    "ClusterOptions": "studies.running.executors.contract",
    "KVCache": "nn.cache",
    "LanguageModel": "nn.language_model",
    "Setting": "studies.study",
    "Study": "studies.study",
    "TrainingOptions": "studies.pretraining",
    "analyze": "api.analyses",
    "convert": "api.conversions",
    "cost": "api.costs",
    "evaluate": "api.texts",
    "generate": "api.texts",
    "load": "api.models",
    "plan": "api.plans",
    "run_study": "api.studies",
    "train": "api.training",
    "variants": "api.variants",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    if name == "__version__":
        return import_module("importlib.metadata").version("qkvary")
    if name not in _MODULES:
        # With these, an interactive session suggests the nearest name.
        raise AttributeError(
            f"module 'qkvary' has no attribute {name!r}", name=name, obj=modules[__name__]
        )
    try:
        module = import_module(f"qkvary.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        raise _explain(error) from error
    found = globals()[name] = getattr(module, name)
    return found


def _explain(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error that names the package to install."""
    packages = import_module("qkvary.storage.packages")
    missing = str(error.name)
    return ModuleNotFoundError(packages.describe_missing(missing), name=missing)


def __dir__() -> list[str]:
    return [*__all__]
