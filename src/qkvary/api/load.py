"""Defines ``qk.load``, which loads a network with its weights and tokenizer."""

from pathlib import Path
from typing import TYPE_CHECKING

from qkvary.api.arguments import verb
from qkvary.api.options import NETWORK, NetworkOptions, open_checkpoint
from qkvary.arch.canonical import import_file

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel


@verb
def load(
    checkpoint: str,
    *,
    tokenizer: str | None = None,
    code: Path | None = None,
    options: NetworkOptions = NETWORK,
) -> "LoadedModel":
    """Load a language model and its tokenizer.

    Args:
        checkpoint: The name of a checkpoint, or the path of its folder or file: our own, a llama2.c
            ``.bin``, a ``.gguf``, a character model, or a folder for transformers.
        tokenizer: For a checkpoint without a tokenizer: ``gpt2``, ``bytes``, a ``tokenizer.json``,
            a ``tok512.bin``, or a ``.model`` of SentencePiece.
        code: Your file with the classes that the network needs. Importing this file runs it.
        options: The device and number format of the network.

    Returns:
        ``network`` is ready for decoding. ``tokenizer`` is ``None`` if the checkpoint has none.
        Usage: ``model, tokenizer = qk.load(path)``.

    Raises:
        ValueError: if the checkpoint does not exist or has no known format, or the device or the
            number format does not exist.
        DamagedError: if the checkpoint is damaged.
        UnsafeError: if the checkpoint is a pickle, which could run code.
    """
    if code is not None:
        import_file(code)
    return open_checkpoint(checkpoint, tokenizer, options)[0]
