"""The networks whose costs the papers print, and one family of today's blocks in any size.

Sizes as the papers' texts and their public code agree on them; where code and text differ, the
function says so.
"""

from dataclasses import replace

from qkvary.arch.attention import (
    KV_NORM_EPS,
    AttentionConfig,
    IdentityScale,
    Initialization,
    ScaleConfig,
)
from qkvary.arch.labels import as_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.arch.variants import Variant

GPT2_VOCABULARY = 50_304
"""Tokens of the GPT-2 tokenizer, padded to a multiple of 64."""

PORTABLE = "Q-K=V@decoupled-16@kv-norm"
"""The variant of portable networks, unless another is given."""

_GPT2_INIT = Initialization(scheme="normal", std=0.02)


def gpt_300m(variant: Variant | str = "QKV") -> LanguageModelConfig:
    """Return the language model of 300M parameters of "Do Transformers Need Three Projections?".

    Source: its section 3.3 and its poster; biases everywhere, as in its public code and Table 5.
    """
    return _three_projections(variant, d_model=1024, num_heads=16, num_layers=20)


def gpt_1200m(variant: Variant | str = "QKV") -> LanguageModelConfig:
    """Return the language model of 1.2B parameters of the same paper.

    Source: its section 3.3, its Table 10 and its poster.
    """
    return _three_projections(variant, d_model=2048, num_heads=32, num_layers=22)


def gpt_124m(
    variant: Variant | str = "QKV",
    *,
    d_model: int = 768,
    d_ff: int | None = None,
    scale: IdentityScale = "published",
    tied_head: bool = True,
) -> LanguageModelConfig:
    """Return the 124M GPT of "[Key,Value] is probably all you need": nanoGPT without biases.

    Args:
        variant: Its attention; ``I-K-V`` is the paper's identity query.
        d_model: 768, or 744 for the paper's narrower baseline (12 heads of 62 channels).
        d_ff: Width of the feed-forward networks; ``None`` means four times ``d_model``.
        scale: The factor of the scores of an identity query: 1/2 as published, or derived.
        tied_head: Whether the output head is the embedding, as in all that is published.

    Source: its section 5.1 and Table 2, and its public configurations.
    """
    attention = AttentionConfig(
        d_model=d_model,
        num_heads=12,
        causal=True,
        bias=False,
        out_bias=False,
        variant=as_variant(variant),
        scale=ScaleConfig(identity=scale),
        init=Initialization(scheme="normal", std=0.02, output_std=0.02 / 24**0.5),
    )
    return LanguageModelConfig(
        attention=attention,
        block=BlockConfig(d_ff=4 * d_model if d_ff is None else d_ff, bias=False),
        num_layers=12,
        vocabulary=GPT2_VOCABULARY,
        max_tokens=1024,
        init=attention.init,
        tied_head=tied_head,
    )


def modern_network(
    variant: Variant | str = "QKV@rotary",
    *,
    d_model: int,
    num_heads: int,
    num_layers: int,
    max_tokens: int,
    vocabulary: int = GPT2_VOCABULARY,
) -> LanguageModelConfig:
    """Return a modern language model: rotary positions, RMSNorm, SwiGLU, no biases, tied head.

    The feed-forward width is 8/3 ``d_model``, to the next multiple of 32; output projections are
    drawn smaller by the root of twice the layers. Half of each head's channels rotate, so that a
    value that is the key has channels without a position too.

    Source: Touvron et al. 2023 (LLaMA) for the block; Radford et al. 2019 for the initial values.
    """
    init = Initialization(scheme="normal", std=0.02, output_std=0.02 / (2 * num_layers) ** 0.5)
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=d_model,
            num_heads=num_heads,
            causal=True,
            bias=False,
            out_bias=False,
            variant=as_variant(variant),
            init=init,
        ),
        block=BlockConfig(
            d_ff=-(-8 * d_model // 96) * 32, activation="swiglu", norm="rmsnorm", bias=False
        ),
        num_layers=num_layers,
        vocabulary=vocabulary,
        max_tokens=max_tokens,
        positions="none",
        init=init,
    )


def make_portable(
    network: LanguageModelConfig, variant: Variant | str = PORTABLE
) -> LanguageModelConfig:
    """Return a modern language model in the form that engines for latent attention compute.

    Its key and value are one normalised tensor, its positions decoupled rotary ones, and every
    norm has the epsilon that such engines have.

    Args:
        network: A result of :func:`modern_network`.
        variant: Its attention.
    """
    block = replace(network.block, norm_eps=KV_NORM_EPS)
    return replace(network, block=block).with_variant(as_variant(variant))


def _three_projections(
    variant: Variant | str, *, d_model: int, num_heads: int, num_layers: int
) -> LanguageModelConfig:
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=d_model,
            num_heads=num_heads,
            causal=True,
            variant=as_variant(variant),
            init=_GPT2_INIT,
        ),
        block=BlockConfig(d_ff=4 * d_model, dropout=0.1),
        num_layers=num_layers,
        vocabulary=GPT2_VOCABULARY,
        max_tokens=2048,
        init=_GPT2_INIT,
    )
