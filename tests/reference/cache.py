"""Decoding one token at a time with plain lists, keeping only what key and value read."""

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from tests.reference.attention import Token, Weights, attend_token, read_token, rows_of


def decode(config: AttentionConfig, weights: Weights, x: Tensor) -> tuple[Tensor, int]:
    """Feed the tokens of ``x`` one by one.

    Returns:
        The outputs, and how many numbers were kept for the whole batch at the end.
    """
    sharing = config.variant.sharing
    kept_names = {sharing.key, sharing.value}
    outputs: list[Tensor] = []
    numbers = 0
    for sequence, row in zip(x, rows_of(x.shape[1], x.shape[0]), strict=True):
        kept: list[Token] = []
        steps: list[Tensor] = []
        for i, vector in enumerate(sequence):
            token = read_token(config, weights, vector)
            kept.append(Token({name: token.sources[name] for name in kept_names}, token.query))
            steps.append(attend_token(config, weights, kept, row, i))
            # The query is used once and forgotten. Where diagonals are needed it is the key.
            symmetric = config.variant.diagonal != "none"
            kept[-1].query = token.sources[sharing.key] if symmetric else []
        outputs.append(torch.stack(steps))
        numbers += sum(
            len(head) for token in kept for heads in token.sources.values() for head in heads
        )
    return torch.stack(outputs), numbers
