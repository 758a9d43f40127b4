"""Checks for optional packages and the extras that provide them."""

from collections.abc import Mapping
from importlib.util import find_spec

from qkvary.storage.errors import UsageError

_EXTRAS: Mapping[str, str] = {
    "PIL": "images",
    "datasets": "data",
    "huggingface_hub": "data",
    "lm_eval": "eval",
    "pyarrow": "data",
    "ray": "cluster",
    "sacrebleu": "translation",
    "submitit": "cluster",
    "tensorboard": "track",
    "tiktoken": "data",
    "tokenizers": "data",
    "trackio": "track",
    "transformers": "hf",
    "zstandard": "data",
}
"""The extra that provides a package; all others are in ``train``."""
_IN_NO_EXTRA = ("wandb",)


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return find_spec(package) is not None


def require(package: str) -> None:
    """Check that a package is installed.

    Raises:
        UsageError: if it is not; the message names the extra that provides it.
    """
    if not is_installed(package):
        raise UsageError(describe_missing(package))


def describe_missing(module: str) -> str:
    """Describe how to install the package of a module."""
    package = module.partition(".")[0]
    if package in _IN_NO_EXTRA:
        return f"{package} is not installed: run pip install {package}"
    extra = _EXTRAS.get(package, "train")
    return f"{package} is not installed: run pip install 'qkvary[{extra}]'"
