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
    """The windows of tokens that a conversion uses; no others overlap with those held out."""

    fitted: Int[Tensor, "windows tokens"]
    trained: Int[Tensor, "more tokens"]
    """The windows that a distillation trains on; see :func:`read_texts`."""
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
    ``context`` (or the whole document, if it is shorter). ``tokens`` are used for fitting. If
    ``held_out`` names no texts, every tenth document of ``data`` is held out, or every tenth window
    if there are fewer than ten documents. A distillation gets ``trained_tokens`` of the remaining
    text. If that is too short, it gets the windows for fitting too.

    Raises:
        UsageError: if a text is too short, or cannot be encoded.
    """
    documents = _list_documents(data)
    read = partial(_read_windows, tokenizer, context=context)
    if held_out or len(documents) >= HELD_OUT:
        chosen = _list_documents(held_out)
        if not held_out:
            chosen = documents[::HELD_OUT]
            del documents[::HELD_OUT]
        trained, taken = read(documents, tokens=tokens)
        others, _ = read(chosen, tokens=held_out_tokens, name="held-out text")
    else:
        every, taken = read(documents, tokens=tokens * HELD_OUT // (HELD_OUT - 1))
        is_held_out = torch.arange(len(every)) % HELD_OUT == HELD_OUT - 1
        if not is_held_out.any():
            raise UsageError(
                f"expected a text of at least {HELD_OUT} windows of {context} tokens, got "
                f"{len(every)} windows; one window in {HELD_OUT} is held out; choices: a second "
                "text to measure losses on (--held-out TEXT), or a smaller --context"
            )
        trained, others = every[~is_held_out], every[is_held_out]
        others = others[: max(1, held_out_tokens // context)]
    fitted = spread_windows(trained, tokens)
    if trained_tokens:
        most = max(trained_tokens, context)
        rest = _take_windows(tokenizer, documents, taken, tokens=most, context=context)
        is_enough = len(rest) == most // context
        trained = rest if is_enough else torch.cat((trained, rest))
    return Texts(fitted, trained, others)


def spread_windows(
    windows: Int[Tensor, "windows tokens"], tokens: int
) -> Int[Tensor, "fewer tokens"]:
    """Return windows of ``tokens`` tokens in all, spread evenly over all windows."""
    count = min(len(windows), max(1, tokens // windows.shape[1]))
    return windows[torch.arange(count) * len(windows) // count]


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
) -> tuple[Int[Tensor, "windows tokens"], list[int]]:
    """Return windows, and the number of tokens that each document contributes to them."""
    taken = [0] * len(documents)
    windows = _take_windows(tokenizer, documents, taken, tokens=tokens, context=context)
    if not len(windows):
        raise UsageError(
            f"expected a {name} of at least {context} tokens, got {sum(taken)}; choices: more "
            "text, or a smaller --context"
        )
    return windows, taken


def _take_windows(
    tokenizer: Tokenizer,
    documents: Sequence[Document],
    taken: list[int],
    *,
    tokens: int,
    context: int,
) -> Int[Tensor, "windows tokens"]:
    """Return windows of the next tokens of documents, and count the tokens in ``taken``."""
    each = max(context, -(-tokens // max(1, len(documents))))
    parts: list[list[int]] = []
    missing = tokens
    for document, start in zip(documents, taken, strict=True):
        if missing <= 0:
            break
        parts.append(encode_start(tokenizer, document, tokens=start + each)[start:])
        missing -= min(each, len(parts[-1]))
    kept = {number: part[:each] for number, part in enumerate(parts)}
    if len(parts) == len(documents):
        # Tokens that short documents lack are taken from longer ones.
        kept, missing = {}, tokens
        for index, number in enumerate(sorted(range(len(parts)), key=lambda one: len(parts[one]))):
            most = max(context, -(-missing // (len(parts) - index)))
            kept[number] = parts[number][:most]
            missing -= len(kept[number])
    for number, part in kept.items():
        taken[number] += len(part)
    joined = torch.tensor([token for part in kept.values() for token in part], dtype=torch.long)
    windows = min(len(joined), max(tokens, context)) // context
    return joined[: windows * context].view(windows, context)
