"""Calibration text as windows of tokens; only the part that is read is encoded."""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from qkvary.analysis.settings import FEWEST_TOKENS
from qkvary.data.documents import Document
from qkvary.data.tokenizers import Tokenizer, encode_document
from qkvary.storage.errors import UsageError

LETTERS_PER_TOKEN = 32
"""Number of letters to encode per requested token; a text whose tokens are longer gives fewer."""


def read_windows(
    documents: Iterable[Document], tokenizer: Tokenizer, *, tokens: int, context: int
) -> Iterator[Int[Tensor, " tokens"]]:
    """Yield windows of one document each, in order.

    A document begins with the tokenizer's beginning, or else ends with its separator. Windows of a
    single token are left out.

    Args:
        documents: The texts.
        tokenizer: The tokenizer of the network.
        tokens: The maximum number of tokens.
        context: The maximum tokens of a window.

    Raises:
        UsageError: if a document cannot be encoded.
    """
    left = tokens
    for document in documents:
        text = document.text[: LETTERS_PER_TOKEN * left]
        try:
            encoded = encode_document(tokenizer, text)[:left]
        except ValueError as error:
            raise UsageError(f"{document.where} cannot be encoded: {error}") from error
        for start in range(0, len(encoded), context):
            window = encoded[start : start + context]
            if len(window) >= FEWEST_TOKENS:
                left -= len(window)
                yield torch.tensor(window)
        if left < FEWEST_TOKENS:
            return
