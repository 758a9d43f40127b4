"""A language model as one file for llama.cpp."""

from __future__ import annotations

from pathlib import Path

from qkvary.checkpoints.gguf.files import pack_file
from qkvary.checkpoints.gguf.headers import CHAT_TEMPLATE, MAGIC, TensorType
from qkvary.checkpoints.gguf.networks import convert_network
from qkvary.checkpoints.gguf.vocabularies import convert_tokenizer
from qkvary.checkpoints.models import ExportResult, LoadedModel
from qkvary.checkpoints.structure import check_structure
from qkvary.storage.durable import make_directory, write_output
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import read_start


def export_gguf(
    loaded: LoadedModel, path: Path, kind: TensorType = "f32", *, chat_template: str | None = None
) -> ExportResult:
    """Write a model for llama.cpp; an existing file of this format is replaced.

    Args:
        loaded: The network and its tokenizer, if it has one.
        path: The file.
        kind: The type of the matrices.
        chat_template: The Jinja text with which llama.cpp writes messages as a prompt.

    Raises:
        UsageError: if llama.cpp cannot compute the network or make its tokens, a layer of it was
            replaced, or ``path`` holds something else.
        ResourceError: if the disk is full, broken or not writable.
    """
    if path.is_file() and read_start(path, len(MAGIC)) != MAGIC:
        raise UsageError(f"{path} is not a GGUF file; it is not overwritten")
    check_structure(loaded.network)
    network = convert_network(loaded.network, kind)
    vocabulary = convert_tokenizer(loaded.tokenizer, loaded.network.config.vocabulary)
    name = {"general.name": path.stem} if path.stem else {}
    chat = {CHAT_TEMPLATE: chat_template} if chat_template else {}
    metadata = {**network.metadata, **name, **vocabulary.metadata, **chat}
    data = pack_file(metadata, network.tensors)
    make_directory(path.absolute().parent)
    write_output(path, data)
    return ExportResult(
        {path.name: len(data)}, network.architecture, (*network.notes, *vocabulary.notes)
    )
