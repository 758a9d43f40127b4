"""Every family multiplies what transformers does: a prompt at once, then token by token.

Counted as an explicit kernel computes it, all pairs of a prompt among them. Two differences are
exact: transformers expands every stored latent in every step, and attends to all summaries where
the indexer has chosen some.
"""

import pytest

from qkvary.arch.blocks import AttentionLayer, CompressedAttention, LatentAttention
from qkvary.costs.macs import decode_macs, forward_macs
from tests.contracts.transformers_cases import CASES, Config
from tests.contracts.transformers_models import (
    ENCODER_TOKENS,
    PROMPT,
    STEPS,
    decode,
    read,
)

ALL = [
    pytest.param(family, config, id=f"{family}-{index}")
    for family, configs in CASES.items()
    for index, config in enumerate(configs)
]


def extra_products(attention: AttentionLayer, context: int) -> int:
    """What transformers multiplies in a step beyond what has to be."""
    heads = attention.num_heads if not hasattr(attention, "config") else 0
    if isinstance(attention, LatentAttention):
        expanded = attention.nope_dim + attention.value_dim
        again = (context - 1) * attention.kv_rank * heads * expanded
        # Scores and values of expanded heads instead of those of the latent.
        absorbed = attention.stored_width + attention.kv_rank
        return again + context * heads * (attention.key_dim + attention.value_dim - absorbed)
    if isinstance(attention, CompressedAttention) and attention.indexer:
        closed = context // attention.indexer.rate
        return max(0, closed - attention.index_top) * 2 * heads * attention.head_dim
    return 0


@pytest.mark.parametrize(("family", "config"), ALL)
def test_a_prompt_and_every_token_after_it(family: str, config: Config) -> None:
    model, ((_, prompt, _), *steps) = read(family, config), decode(family, config)
    macs = forward_macs(model, tokens=PROMPT, pairs="square", encoder_tokens=ENCODER_TOKENS)
    assert prompt == macs.total
    assert len(steps) == STEPS
    for context, multiplied, _ in steps:
        counted = decode_macs(model, context=context, encoder_tokens=ENCODER_TOKENS)
        extra = sum(extra_products(layer.attention, context) for layer in model.layers)
        assert multiplied == counted.total + extra, context


def test_the_differences_are_there() -> None:
    """Two families and no other multiply more in a step than has to be."""
    more = {
        family
        for family, configs in CASES.items()
        for config in configs
        for layer in read(family, config).layers
        if extra_products(layer.attention, PROMPT + STEPS)
    }
    assert more == {"deepseek_v2", "deepseek_v3", "deepseek_v4"}
