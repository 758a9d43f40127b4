"""Transformers whose attention shares its query, key and value projections.

``import qkvary as qk`` provides the names below and the functions of ``qkvary.api.verbs``, which
are also commands. Each name is loaded on first use, so that ``import qkvary`` loads no other module
of the package. Modules inside the package import only from its submodules, never from ``qkvary``
itself. Longer import paths are in docs/guide/api.md.
"""

from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkvary.api.analyze import analyze as analyze
    from qkvary.api.bench_decode import bench_decode as bench_decode
    from qkvary.api.bench_quantized import bench_quantized as bench_quantized
    from qkvary.api.convert import convert as convert
    from qkvary.api.cost import cost as cost
    from qkvary.api.data_features import prepare_features as prepare_features
    from qkvary.api.data_prepare import prepare_data as prepare_data
    from qkvary.api.data_show import show_data as show_data
    from qkvary.api.doctor import doctor as doctor
    from qkvary.api.evaluate import evaluate as evaluate
    from qkvary.api.export import export as export
    from qkvary.api.generate import generate as generate
    from qkvary.api.list_studies import list_studies as list_studies
    from qkvary.api.load import load as load
    from qkvary.api.pack import pack as pack
    from qkvary.api.plan import Hardware as Hardware
    from qkvary.api.plan import Load as Load
    from qkvary.api.plan import Purpose as Purpose
    from qkvary.api.plan import plan as plan
    from qkvary.api.report import report as report
    from qkvary.api.serve import serve as serve
    from qkvary.api.show import show as show
    from qkvary.api.status import status as status
    from qkvary.api.study import study as study
    from qkvary.api.train import train as train
    from qkvary.api.unpack import unpack as unpack
    from qkvary.api.variants import variants as variants
    from qkvary.nn.attention import Attention as Attention
    from qkvary.nn.cache import KVCache as KVCache
    from qkvary.nn.language_model import LanguageModel as LanguageModel
    from qkvary.papers.claims import claims as claims
    from qkvary.papers.figures import figures as figures
    from qkvary.papers.published import published as published
    from qkvary.studies.running.executors.contract import ClusterOptions as ClusterOptions
    from qkvary.studies.study import Setting as Setting
    from qkvary.studies.study import Study as Study
    from qkvary.studies.training_study import TrainingOptions as TrainingOptions

    __all__: list[str]
    __version__: str

_MODULES = {
    "Attention": "nn.attention",
    "ClusterOptions": "studies.running.executors.contract",
    "Hardware": "api.plan",
    "KVCache": "nn.cache",
    "LanguageModel": "nn.language_model",
    "Load": "api.plan",
    "Purpose": "api.plan",
    "Setting": "studies.study",
    "Study": "studies.study",
    "TrainingOptions": "studies.training_study",
    "load": "api.load",
}
"""The module of each public name, except the functions that are also commands."""


def _find_modules() -> dict[str, str]:
    """Return a mapping of every public name to its module."""
    targets = import_module("qkvary.api.verbs").TARGETS.values()
    verbs = (target.partition(":") for target in targets)
    return _MODULES | {name: module for module, _, name in verbs}


def __getattr__(name: str) -> object:
    """Import and return a public name on first use."""
    if name == "__version__":
        return import_module("importlib.metadata").version("qkvary")
    if name == "__all__":
        return sorted(_find_modules())
    if name.startswith("_") or name not in (found := _find_modules()):
        # With these, an interactive session suggests the nearest name.
        raise AttributeError(
            f"module 'qkvary' has no attribute {name!r}", name=name, obj=modules[__name__]
        )
    try:
        module = import_module(f"qkvary.{found[name]}")
    except ModuleNotFoundError as error:
        raise _explain(error) from error
    value = globals()[name] = getattr(module, name)
    return value


def _explain(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an error whose message names the package to install."""
    packages = import_module("qkvary.storage.packages")
    missing = str(error.name)
    return ModuleNotFoundError(packages.describe_missing(missing), name=missing)


def __dir__() -> list[str]:
    return sorted(_find_modules())
