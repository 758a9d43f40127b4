"""Shared keys and values in the portable form, which other engines compute."""

from qkvary.papers.ours.small_language_models import (
    CONTEXT,
    HEADS,
    STEPS,
    describe_scale,
    novels_setting,
    small_network,
)
from qkvary.studies.study import Study

ROTATED = "Q-K=V@rotary"
GROUPED = "GQA-8@rotary"
LATENT = "Q-K=V@decoupled-16@latent-240@kv-norm"
ROPE_CHANNELS = (8, 16, 32)

_PLAIN = tuple(f"Q-K=V@decoupled-{size}" for size in ROPE_CHANNELS)
_NORMED = tuple(f"{label}@kv-norm" for label in _PLAIN)
_LIMITS = (
    (
        "These are small networks at the beginning of their training, as in lm-small: they "
        "show which form learns faster there, not which is better in the end."
    ),
    (
        "A head has 16 channels, where those of usual networks have 64 or 128. So 8 to 32 "
        "channels of decoupled positions are half to twice a head; usual are 64 for a head of "
        "128."
    ),
    (
        "The portable form keeps 8, 16 or 32 more numbers of a token and layer than the 256 of "
        "the others, and has up to 280,000 more parameters (latent attention 378,000), because "
        "positions take additional projections. Blocks have LayerNorm and GELU as in lm-small; "
        "what is exported has RMSNorm and SwiGLU."
    ),
    describe_scale(networks=9, seeds=5, presets=("lm-30m", "lm-124m", "lm-350m")),
)

STUDY = Study(
    name="portable-quality",
    question="Are shared keys and values as good in the portable form as with rotated keys?",
    description=(
        "The networks, text and training are those of lm-small. Q-K=V with rotary positions "
        "and the output rotated back, which other engines do not compute, is compared with the "
        "form that they compute: unrotated keys and decoupled positions of 8, 16 or 32 "
        "channels, with and without a norm of the tensor that key and value share. With the "
        "same cache of 256 numbers a token and layer, there are latent attention (MLA: 240 "
        "channels and 16 of positions) and GQA-8."
    ),
    settings=(
        novels_setting(
            "novels",
            small_network(context=CONTEXT, num_heads=HEADS),
            steps=STEPS,
            limits=_LIMITS,
        ),
    ),
    variants=(ROTATED, *_PLAIN, *_NORMED, LATENT, GROUPED),
    baseline=ROTATED,
    contrasts=(
        *zip(_NORMED, _PLAIN, strict=True),
        *((label, GROUPED) for label in _NORMED),
        (_NORMED[1], LATENT),
        (LATENT, GROUPED),
    ),
    seeds=(0, 1, 2, 3, 4),
)
