"""The texts of a conversion, cut into windows of tokens: some for fitting, others held out."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

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

    Every document contributes equally many tokens; if some documents are too short, longer ones
    make up for them. ``tokens`` are used for fitting, and ``trained_tokens`` for a distillation.
    If ``held_out`` names no texts, every tenth window of ``data`` is held out.

    Raises:
        UsageError: if a text is too short, or cannot be encoded.
    """
    most = max(tokens, trained_tokens)
    if held_out:
        trained = _read_windows(tokenizer, data, tokens=most, context=context)
        others = _read_windows(tokenizer, held_out, tokens=held_out_tokens, context=context)
    else:
        every = _read_windows(
            tokenizer, data, tokens=most * HELD_OUT // (HELD_OUT - 1), context=context
        )
        chosen = torch.arange(len(every)) % HELD_OUT == HELD_OUT - 1
        if not chosen.any():
            raise UsageError(
                f"expected a text of at least {HELD_OUT} windows of {context} tokens, because one "
                f"window in {HELD_OUT} is held out, got {len(every)} windows; choices: a second "
                "text to measure losses on (--held-out TEXT), or a smaller --context"
            )
        trained, others = every[~chosen], every[chosen][: max(1, held_out_tokens // context)]
    count = min(len(trained), max(1, tokens // context))
    # Windows are spread over all documents.
    numbers = torch.arange(count) * len(trained) // count
    return Texts(trained[numbers], trained, others)


def _read_windows(
    tokenizer: Tokenizer, paths: Sequence[Path], *, tokens: int, context: int
) -> Int[Tensor, "windows tokens"]:
    documents = list(read_documents(paths))
    each = -(-tokens // max(1, len(documents)))
    parts = [encode_start(tokenizer, document, tokens=each) for document in documents]
    # Tokens that short documents lack are taken from longer ones.
    missing = tokens
    kept: list[list[int]] = []
    for index, part in enumerate(sorted(parts, key=len)):
        kept.append(part[: -(-missing // (len(parts) - index))])
        missing -= len(kept[-1])
    joined = torch.tensor([token for part in kept for token in part], dtype=torch.long)
    windows = len(joined) // context
    if not windows:
        raise UsageError(f"expected a text of at least {context} tokens, got {len(joined)}")
    return joined[: windows * context].view(windows, context)
