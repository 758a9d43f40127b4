"""The named networks: networks whose costs the papers print, and networks for new work.

A name means the same network in Python, on the command line and in files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from qkvary.arch.attention import (
    KV_NORM_EPS,
    AttentionConfig,
    IdentityScale,
    Initialization,
    ScaleConfig,
)
from qkvary.arch.labels import as_label, as_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.arch.parts import given_sizes
from qkvary.arch.variants import AnyVariant, Variant
from qkvary.text.names import find_name, spell, suggest

GPT2_VOCABULARY = 50_304
"""The GPT-2 tokenizer's vocabulary, padded to a multiple of 64."""

PORTABLE = "Q-K=V@decoupled-16@kv-norm"
"""The variant of portable networks, unless another is given."""

_GPT2_INIT = Initialization(scheme="normal", std=0.02)


def gpt_300m(variant: Variant | str = "QKV") -> LanguageModelConfig:
    """Return the 300M-parameter language model of "Do Transformers Need Three Projections?".

    Source: its section 3.3 and its poster. Blocks have biases, as in its public code and Table 5.
    """
    return _three_projections(variant, d_model=1024, num_heads=16, num_layers=20)


def gpt_1200m(variant: Variant | str = "QKV") -> LanguageModelConfig:
    """Return the 1.2B-parameter language model of "Do Transformers Need Three Projections?".

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

    ``I-K-V`` is the paper's identity query; ``scale`` gives its scores the published factor 1/2 or
    the derived one. The paper's narrower baseline has 744 channels (12 heads of 62).

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

    The feed-forward width is 8/3 ``d_model``, rounded up to a multiple of 32; output projections
    are initialised smaller by a factor of sqrt(2 num_layers). Only half of each head's channels
    rotate, so that a value shared with the key also has channels without a position.

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
    """Return ``network`` with a portable variant, which engines can run as latent attention."""
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


_MODERN = {
    "lm-100k": modern_network(
        d_model=48, num_heads=4, num_layers=3, max_tokens=128, vocabulary=320
    ),
    "lm-1m": modern_network(d_model=128, num_heads=4, num_layers=5, max_tokens=256, vocabulary=320),
    "lm-10m": modern_network(
        d_model=320, num_heads=8, num_layers=8, max_tokens=1024, vocabulary=320
    ),
    "lm-30m": modern_network(d_model=384, num_heads=8, num_layers=6, max_tokens=1024),
    "lm-60m": modern_network(d_model=512, num_heads=8, num_layers=11, max_tokens=1024),
    "lm-124m": modern_network(d_model=768, num_heads=12, num_layers=12, max_tokens=1024),
    "lm-350m": modern_network(d_model=1024, num_heads=16, num_layers=24, max_tokens=2048),
    "lm-1b": modern_network(d_model=2048, num_heads=32, num_layers=18, max_tokens=2048),
}
_PORTABLE_SIZES = ("lm-1m", "lm-10m", "lm-30m", "lm-60m", "lm-124m", "lm-350m")
PORTABLE_NETWORKS: Mapping[str, tuple[str, str]] = {
    **{f"{name}-portable": (name, PORTABLE) for name in _PORTABLE_SIZES},
    # 512 latent channels and 64 rotary ones, like DeepSeek: every kernel for latents supports this
    # size.
    "lm-60m-mla": ("lm-60m", "Q-K=V@decoupled-64@kv-norm"),
}
"""For each portable network, the name of the network with the same training, and the variant."""


NETWORKS: Mapping[str, LanguageModelConfig] = {
    "lm-300m": gpt_300m(),
    "lm-300m-poster": gpt_300m(),
    "lm-1.2b": gpt_1200m(),
    "gpt2-124m": gpt_124m(),
    "gpt2-117m-mlp": gpt_124m(d_ff=2688),
    "gpt2-118m-narrow": gpt_124m(d_model=744),
    "gpt2-117m-identity": gpt_124m("I-K-V"),
    "gpt2-124m-identity": gpt_124m("I-K-V", d_ff=3456),
    "gpt2-117m-identity-derived": gpt_124m("I-K-V", scale="derived"),
    "gpt2-124m-identity-derived": gpt_124m("I-K-V", d_ff=3456, scale="derived"),
    "gpt2-156m-identity-untied": gpt_124m("I-K-V", tied_head=False),
    "gpt2-124m-residual": gpt_124m("Q[residual]-K-V"),
    "gpt2-124m-residual-gelu": gpt_124m("Q[residual-gelu]-K-V"),
    "gpt2-163m-untied": gpt_124m(tied_head=False),
    "gpt2-124m-decay": gpt_124m(),
    "gpt2-124m-scale": gpt_124m("QKV@t2"),
    "gpt2-124m-decay-scale": gpt_124m("QKV@t2"),
    **_MODERN,
    **{
        name: make_portable(_MODERN[like], variant)
        for name, (like, variant) in PORTABLE_NETWORKS.items()
    },
}
"""Every network by name; the papers' networks come first."""

ALIASES: Mapping[str, str] = {
    **{name.removeprefix("lm-"): name for name in NETWORKS if name.startswith("lm-")},
    "124m": "gpt2-124m",
}
"""Sizes as short names; ``300M``, ``1.2B`` and ``124M`` mean the networks of the papers."""


def canonical_name(name: str, choices: Iterable[str] = NETWORKS) -> str | None:
    """Return the choice that a name or size in any spelling refers to, or ``None``."""
    return find_name(ALIASES.get(spell(name), name), choices)


def find_network(name: str, variant: AnyVariant | str | None = None) -> LanguageModelConfig:
    """Return the network called ``name``.

    A ``variant`` that names no positions gets the positions of the network.

    Raises:
        ValueError: for an unknown name, or a variant that does not fit the network.
    """
    known = canonical_name(name)
    if known is None:
        found = suggest(name, NETWORKS)
        raise ValueError(f"expected the name of a network, got {name[:60]!r}; {found}")
    return _vary(NETWORKS[known], variant)


def choose_network(
    given: LanguageModelConfig | str | None,
    sizes: Mapping[str, int | None],
    variant: AnyVariant | str | None = None,
) -> LanguageModelConfig:
    """Return ``given`` if it is a network, or the network with the name ``given``.

    If ``given`` is ``None``, return the :func:`modern_network` of these ``sizes``; a size that is
    ``None`` counts as not given.
    """
    if isinstance(given, str):
        given = find_network(given)
    own = given_sizes(given, sizes, kind=LanguageModelConfig, required=tuple(sizes))
    return _vary(modern_network(**own) if given is None else given, variant)


def _vary(network: LanguageModelConfig, variant: AnyVariant | str | None) -> LanguageModelConfig:
    if variant is None:
        return network
    return network.with_variant(as_label(variant).keep_positions(network.layers[0].variant))
