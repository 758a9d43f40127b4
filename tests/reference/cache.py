"""Decoding one token at a time with plain lists, keeping only what key and value read."""

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from tests.reference.attention import (
    Sources,
    Weights,
    attend_token,
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
    for sequence, row in zip(x, rows_of(x.shape[1], x.shape[0]), strict=True):
        kept: list[Sources] = []
        steps: list[Tensor] = []
        for i, vector in enumerate(sequence):
            sources = read_sources(config, weights, vector)
            kept.append({name: sources[name] for name in (sharing.key, sharing.value)})
            tokens = [
                read_token(config, weights, None, stored, position)
                for stored, position in zip(kept, row.positions, strict=False)
            ]
            tokens[i] = read_token(config, weights, vector, sources, row.positions[i])
            if config.variant.diagonal != "none":
                # Diagonals are normalised only where the query is the key.
                for token in tokens:
                    token.query = token.key
            steps.append(attend_token(config, weights, tokens, row, i))
        outputs.append(torch.stack(steps))
        numbers += sum(len(head) for stored in kept for heads in stored.values() for head in heads)
    return torch.stack(outputs), numbers
