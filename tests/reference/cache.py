"""Decoding one token at a time, keeping only what key and value read.

Of a layer with a window only what the next token will see is kept, with a stride what one of the
next tokens will see: everything.
"""

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from tests.reference.attention import Weights, head_size, is_visible, mix, read_sources, rows_of


def decode(config: AttentionConfig, weights: Weights, x: Tensor) -> tuple[Tensor, int]:
    """Feed the tokens of ``x`` one by one.

    Returns:
        The outputs, and how many numbers were kept for the whole batch at the end.
    """
    variant = config.variant
    outputs: list[Tensor] = []
    numbers = 0
    # More tokens than there are: after the last one, what the next ones would see is kept.
    ahead = variant.stride or 1
    for sequence, row in zip(x, rows_of(x.shape[1] + ahead, x.shape[0]), strict=True):
        sources, kept, steps = read_sources(config, weights, sequence), list[int](), list[Tensor]()
        for i in range(len(sequence)):
            # What was dropped is not there to be seen.
            kept = [*kept, i]
            held = {name: source[:, kept] for name, source in sources.items()}
            steps.append(mix(config, weights, sequence[kept], held, row.take(kept))[-1])
            kept = [
                j
                for j in kept
                if any(is_visible(config, row, i + 1 + later, j) for later in range(ahead))
            ]
        outputs.append(torch.stack(steps))
        names = {variant.sharing.key, variant.sharing.value, *({"k_rope"} & set(sources))}
        if variant.core.startswith("linear"):
            # Whatever was seen, a matrix of each KV head, and a vector where weights are summed up.
            size = head_size(config)
            sums = variant.core != "linear-identity" and variant.normaliser != "unnormalised"
            numbers += config.num_kv_heads * size * (size + sums)
        else:
            numbers += sum(sources[name][:, kept].numel() for name in names)
    return torch.stack(outputs), numbers
