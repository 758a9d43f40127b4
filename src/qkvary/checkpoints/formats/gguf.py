"""GGUF, the file of llama.cpp, whole or in parts."""

from pathlib import Path

from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.gguf.configs import make_config, read_sizes
from qkvary.checkpoints.gguf.headers import list_files, read_file
from qkvary.checkpoints.gguf.reading import read_network
from qkvary.checkpoints.gguf.reading_vocabularies import read_tokenizer
from qkvary.checkpoints.models import LoadedModel, build_model
from qkvary.storage.untrusted_files import only_file

FORMAT = "GGUF (a .gguf file of llama.cpp)"
TOKENIZER_FILES = ()


def recognises(path: Path) -> bool:
    """Return whether a path is a GGUF file, or a folder with one."""
    return bool(list_files(path))


def load(path: Path) -> LoadedModel:
    """Load a network, and its tokenizer if it has one."""
    file = read_file(only_file(path, list_files(path)), is_whole=True)
    config, weights = read_network(file, str(path))
    return build_model(config, weights, read_tokenizer(file.metadata, str(path)), str(path))


def read_config(path: Path) -> LanguageModelConfig | None:
    """Return the configuration of the network from the header; ``None`` for DeepSeek."""
    file = only_file(path, list_files(path))
    return make_config(read_sizes(read_file(file), str(file)))
