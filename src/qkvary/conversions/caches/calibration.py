"""Reads the texts that a conversion needs and cuts them into windows of tokens.

Some windows are used for fitting; others are held out.
"""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from qkvary.data.documents import Document
from qkvary.data.encoding import encode_start
from qkvary.data.sources import read_documents
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.errors import UsageError

HELD_OUT = 10


class Texts(NamedTuple):
    """The windows of tokens that a conversion uses; they do not overlap."""

    fitted: Int[Tensor, "windows tokens"]
    trained: Int[Tensor, "more tokens"]
    """The windows that a distillation trains on; they include the fitted ones."""
    held_out: Int[Tensor, "others tokens"]


def read_texts(
    tokenizer: Tokenizer,
    data: Sequence[Path],
    *,
    tokens: int,
    context: int,
    held_out: Sequence[Path] = (),
    held_out_tokens: int,
    trained_tokens: int = 0,
) -> Texts:
    """Return windows of ``context`` tokens, for fitting and for measuring.

    Documents are used in a random order. Each contributes equally many tokens, at least
    ``context`` (or the whole document, if it is shorter). ``tokens`` are used for fitting, and
    ``trained_tokens`` for a distillation. If ``held_out`` names no texts, every tenth document of
    ``data`` is held out, or every tenth window if there are fewer than ten documents.

    Raises:
        UsageError: if a text is too short, or cannot be encoded.
    """
    most = max(tokens, trained_tokens)
    documents = _list_documents(data)
    read = partial(_read_windows, tokenizer, context=context)
    if held_out or len(documents) >= HELD_OUT:
        chosen = _list_documents(held_out)
        if not held_out:
            chosen = documents[::HELD_OUT]
            del documents[::HELD_OUT]
        trained = read(documents, tokens=most)
        others = read(chosen, tokens=held_out_tokens, name="held-out text")
    else:
        every = read(documents, tokens=most * HELD_OUT // (HELD_OUT - 1))
        is_held_out = torch.arange(len(every)) % HELD_OUT == HELD_OUT - 1
        if not is_held_out.any():
            raise UsageError(
                f"expected a text of at least {HELD_OUT} windows of {context} tokens, got "
                f"{len(every)} windows; one window in {HELD_OUT} is held out; choices: a second "
                "text to measure losses on (--held-out TEXT), or a smaller --context"
            )
        trained, others = every[~is_held_out], every[is_held_out]
        others = others[: max(1, held_out_tokens // context)]
    count = min(len(trained), max(1, tokens // context))
    # Windows are spread over all documents.
    numbers = torch.arange(count) * len(trained) // count
    return Texts(trained[numbers], trained, others)


def _list_documents(paths: Sequence[Path]) -> list[Document]:
    """Return the documents in a random order, so that the first few are a random sample."""
    documents = list(read_documents(paths))
    return random.Random(0).sample(documents, len(documents))


def _read_windows(
    tokenizer: Tokenizer,
    documents: Sequence[Document],
    *,
    tokens: int,
    context: int,
    name: str = "text",
) -> Int[Tensor, "windows tokens"]:
    each = max(context, -(-tokens // max(1, len(documents))))
    parts: list[list[int]] = []
    missing = tokens
    for document in documents:
        if missing <= 0:
            break
        parts.append(encode_start(tokenizer, document, tokens=each))
        missing -= min(each, len(parts[-1]))
    kept = [part[:each] for part in parts]
    if len(parts) == len(documents):
        # Tokens that short documents lack are taken from longer ones.
        kept, missing = [], tokens
        for index, part in enumerate(sorted(parts, key=len)):
            kept.append(part[: max(context, -(-missing // (len(parts) - index)))])
            missing -= len(kept[-1])
    joined = torch.tensor([token for part in kept for token in part], dtype=torch.long)
    windows = min(len(joined), max(tokens, context)) // context
    if not windows:
        raise UsageError(
            f"expected a {name} of at least {context} tokens, got {len(joined)}; choices: more "
            "text, or a smaller --context"
        )
    return joined[: windows * context].view(windows, context)
