"""Decoding one token at a time with plain lists, keeping only what key and value read.

Of a layer with a window only what the next token will see is kept, with a stride what one of the
next tokens will see: everything.
"""

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from tests.reference.attention import (
    Sources,
    Token,
    Weights,
    attend_token,
    is_visible,
    read_sources,
    read_token,
    rows_of,
)


def decode(config: AttentionConfig, weights: Weights, x: Tensor) -> tuple[Tensor, int]:
    """Feed the tokens of ``x`` one by one.

    Returns:
        The outputs, and how many numbers were kept for the whole batch at the end.
    """
    sharing = config.variant.sharing
    outputs: list[Tensor] = []
    numbers = 0
    # More tokens than there are: after the last one, what the next ones would see is kept.
    ahead = config.variant.stride or 1
    for sequence, row in zip(x, rows_of(x.shape[1] + ahead, x.shape[0]), strict=True):
        kept: dict[int, Sources] = {}
        steps: list[Tensor] = []
        for i, vector in enumerate(sequence):
            # A token that is not kept has no heads, and looking at it fails.
            tokens = [Token([], [], [], position) for position in row.positions[: i + 1]]
            for j, stored in kept.items():
                tokens[j] = read_token(config, weights, None, stored, row.positions[j])
            sources = read_sources(config, weights, vector)
            tokens[i] = read_token(config, weights, vector, sources, row.positions[i])
            names = {sharing.key, sharing.value, *({"k_rope"} & set(sources))}
            kept[i] = {name: sources[name] for name in names}
            kept = {
                j: kept[j]
                for j in kept
                if any(is_visible(config, row, i + 1 + later, j) for later in range(ahead))
            }
            if config.variant.diagonal != "none":
                # Diagonals are normalised only where the query is the key.
                for token in tokens:
                    token.query = token.key
            steps.append(attend_token(config, weights, tokens, row, i))
        outputs.append(torch.stack(steps))
        held = [head for stored in kept.values() for heads in stored.values() for head in heads]
        if config.variant.core.startswith("linear"):
            # Whatever was seen, a matrix of each KV head, and a vector where weights are summed up.
            size = len(tokens[-1].key[0])
            sums = "identity" not in config.variant.core
            sums = sums and config.variant.normaliser != "unnormalised"
            held = [torch.zeros(size * (size + sums)) for _ in tokens[-1].key]
        numbers += sum(len(head) for head in held)
    return torch.stack(outputs), numbers
