"""Says which packages are installed, and which extra of qkvary brings one that is not."""

from collections.abc import Mapping
from importlib.util import find_spec

from qkvary.storage.errors import UsageError

_EXTRAS: Mapping[str, str] = {
    "datasets": "data",
    "huggingface_hub": "data",
    "lm_eval": "eval",
    "pyarrow": "data",
    "tensorboard": "track",
    "tiktoken": "data",
    "tokenizers": "data",
    "transformers": "hf",
    "zstandard": "data",
}
"""The extra of a package; every other one comes with ``train``."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported; does not import it."""
    return find_spec(package) is not None


def require(package: str) -> None:
    """Refuse to go on without a package.

    Raises:
        UsageError: if it is not installed; the message names the extra that brings it.
    """
    if not is_installed(package):
        raise UsageError(describe_missing(package))


def describe_missing(module: str) -> str:
    """Return a sentence on how to install the package of a module."""
    package = module.partition(".")[0]
    extra = _EXTRAS.get(package, "train")
    return f"{package} is not installed: pip install 'qkvary[{extra}]' brings it"
