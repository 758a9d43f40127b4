"""Tests changes to attention scores that paper 1 mentions in addition to its variants."""

from dataclasses import replace

from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS, quick_characters, quick_sequences
from qkvary.studies.study import CrossSettingContrast, Setting, Study
from qkvary.training.config import TemperatureSchedule

ANNEALING = TemperatureSchedule(start=4.0)

SYMMETRIC = ("Q=K-V", "(Q=K-V)+", "Q=K=V", "(Q=K=V)+")
WITHOUT_PLUS = ("QKV", "Q=K-V", "Q-K=V", "Q=K=V")
"""The variants without ``+``. (Only the softmax supports ``+``.)"""
DIAGONALS = ("diag-mean", "diag-norm", "diag-mean-unscaled", "diag-norm-unscaled")
OTHERS = ("t0.5", "t2.0", "w4", "s4", "w4@s4")
BIDIRECTIONAL = "sima"

_ABLATED = (
    *((f"{sharing}@{option}", sharing) for option in DIAGONALS for sharing in SYMMETRIC),
    *((f"{sharing}@{option}", sharing) for option in OTHERS for sharing in SYNTHETIC_VARIANTS),
    *(
        (f"{sharing}@{core}", sharing)
        for core in ("soft", BIDIRECTIONAL)
        for sharing in WITHOUT_PLUS
    ),
)
"""Pairs of variants with the same sharing: with an option or another core, and without it."""


def _limits(text: str) -> tuple[str, ...]:
    return (
        text,
        (
            "These are networks of two layers after a few hundred steps, all trained at one "
            "learning rate. They show what helps or hurts at the start of training. They do not "
            "show what is best at the end of a long training, or what would be best if each "
            "variant had its own best learning rate."
        ),
    )


def _anneal(setting: Setting) -> Setting:
    name = f"{setting.name}, annealed"
    training = replace(setting.training, temperature=ANNEALING)
    return replace(
        setting, name=name, table=name, variants=SYNTHETIC_VARIANTS, training=training, limits=()
    )


_PLAIN = (
    replace(
        quick_sequences("swap", steps=400, learning_rate=2e-3),
        limits=_limits(
            "Swap needs tokens at distance 8. With a window of 4, two layers reach only 6 "
            "tokens back; with a stride of 4, one layer reaches 8 tokens back."
        ),
    ),
    replace(
        quick_characters(),
        table="characters",
        variants=(
            *SYNTHETIC_VARIANTS,
            *(one for one, _ in _ABLATED if BIDIRECTIONAL not in one),
        ),
        limits=_limits(
            "SimA is missing here, because its norms over all tokens have no causal form."
        ),
    ),
)

STUDY = Study(
    name="ablations-quick",
    question=(
        "How do the score diagonal, the temperature, the mask and replacements of the softmax "
        "affect shared projections?"
    ),
    description=(
        "The study tests four options that paper 1 (Do Transformers Need Three Projections?) names "
        "in addition to its variants. Each option is combined with every variant that allows it. "
        "First, the diagonal of K K^T is divided by its mean or by its norm, either before the "
        "scores are scaled (as in paper 1's listing) or after. Second, the temperature is 1/2, 2, "
        "or annealed from 4 to 1 over the S steps of training: tau(t) = 4^(1 - t/S). Third, the "
        "mask is a window of 4, a stride of 4, or both. Fourth, the softmax is replaced by SOFT's "
        "Gaussian kernel or SimA's l1 norms. (The published SOFT ties query and key, so it is "
        "Q=K-V@soft.) The sizes are those of quickstart: swap of 16 digits for 400 steps, and "
        "characters of tiny Shakespeare for 300 steps. All variants have equal hyper-parameters."
    ),
    settings=(*_PLAIN, *(_anneal(setting) for setting in _PLAIN)),
    variants=(*SYNTHETIC_VARIANTS, *(one for one, _ in _ABLATED)),
    seeds=(0, 1, 2, 3, 4),
    contrasts=(
        *_ABLATED,
        *(
            CrossSettingContrast(sharing, f"{setting.name}, annealed", sharing, setting.name)
            for setting in _PLAIN
            for sharing in SYNTHETIC_VARIANTS
        ),
    ),
)
