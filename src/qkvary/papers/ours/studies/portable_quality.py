"""Measures the quality of shared keys and values in the form that other engines can run."""

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
        "These are small networks at the beginning of their training, as in lm-small. They "
        "show which form learns faster at first, not which form is better in the end."
    ),
    (
        "A head has 16 channels here, while a head usually has 64 or 128. In this "
        "study, decoupled positions have 8 to 32 channels, which is half to twice the size of a "
        "head. Usually, they have half the size of a head."
    ),
    (
        "The portable form keeps 8, 16 or 32 more numbers per token and layer than the other "
        "networks, which keep 256. It also has up to 280,000 more parameters (latent attention "
        "has 378,000 more), because decoupled positions need additional projections. Blocks "
        "have LayerNorm and GELU as in lm-small; exported networks have RMSNorm and SwiGLU."
    ),
    describe_scale(networks=9, seeds=5, presets=("lm-30m", "lm-124m", "lm-350m")),
)

STUDY = Study(
    name="portable-quality",
    question=(
        "Does the portable form of shared keys and values learn as well as the form with rotated "
        "keys?"
    ),
    description=(
        "The networks, text and training are those of lm-small. The study compares two forms of "
        "Q-K=V. One form has rotary positions and rotates the output back; other engines cannot "
        "run it. The portable form has unrotated keys and decoupled positions of 8, 16 or 32 "
        "channels, each with and without a norm of the shared key-value tensor. The study also "
        "compares latent attention (MLA, with 240 channels and 16 channels for positions) and "
        "GQA-8. These two and the form that rotates the output back cache 256 numbers per token "
        "and layer."
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
