"""Checks for optional packages and the extras that provide them."""

from collections.abc import Mapping
from importlib.util import find_spec

from qkvary.storage.errors import UsageError

_EXTRAS: Mapping[str, str] = {
    "PIL": "images",
    "datasets": "data",
    "gguf": "export",
    "huggingface_hub": "data",
    "jaxtyping": "train",
    "llama_cpp": "serve",
    "lm_eval": "eval",
    "numpy": "train",
    "pyarrow": "data",
    "ray": "cluster",
    "sacrebleu": "translation",
    "safetensors": "train",
    "scipy": "train",
    "submitit": "cluster",
    "tensorboard": "track",
    "tiktoken": "data",
    "tokenizers": "data",
    "torch": "train",
    "trackio": "track",
    "transformers": "hf",
    "vl_convert": "train",
    "zstandard": "data",
}
"""The extra that installs each package. A package without an entry is installed by name."""


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return find_spec(package) is not None


def require(package: str) -> None:
    """Check that a package is installed."""
    if not is_installed(package):
        raise UsageError(describe_missing(package))


def describe_missing(module: str) -> str:
    """Describe how to install the package of a module."""
    package = module.partition(".")[0]
    extra = _EXTRAS.get(package)
    wanted = package if extra is None else f"'qkvary[{extra}]'"
    return f"{package} is not installed: run pip install {wanted}"
