"""Compares three choices of a value that shares its projection with a rotated key."""

from qkvary.arch.attention import ValueRope
from qkvary.papers.ours.small_language_models import (
    CONTEXT,
    POSITIONS_PER_STEP,
    ROTARY_STEPS,
    describe_scale,
    rotary_setting,
    small_network,
    small_rotary,
)
from qkvary.studies.study import CrossSettingContrast, Setting, Study

HEADS = 8
FRACTIONS = {"a quarter": 0.25, "half": 0.5, "all": 1.0}
NONE: ValueRope = "none"
COUNTER: ValueRope = "counter"
ROTATED: ValueRope = "rotated"
BIASES = "linear biases"
SHARED, APART = "Q-K=V@rotary", "QKV@rotary"
SHARED_BIASED, APART_BIASED = "Q-K=V@alibi", "QKV@alibi"


def _name(part: str, meaning: str) -> str:
    return f"{part} rotates, {meaning}"


_LIMITS = (
    (
        f"These are small networks trained on {ROTARY_STEPS * POSITIONS_PER_STEP:,} bytes in rows "
        f"of {CONTEXT}. They show with which kind of value (rotated or not) a network learns "
        "faster. They do not show which kind is better in the end, and they show nothing about "
        "long texts."
    ),
    (
        "All rows begin at position 0, so a network may infer absolute positions from rotated "
        "values. Positions beyond those of training are not tested here."
    ),
    describe_scale(networks=14, seeds=5, presets=("lm-30m", "lm-124m", "lm-350m")),
)


def _rotary(part: str, meaning: ValueRope) -> Setting:
    position = small_rotary(fraction=FRACTIONS[part], value=meaning)
    network = small_network(context=CONTEXT, num_heads=HEADS, position=position)
    # With separate key and value, the rotation of the value does not matter, so one setting
    # suffices.
    variants = (APART, SHARED) if meaning == COUNTER else (SHARED,)
    return rotary_setting(_name(part, meaning), network, variants, _LIMITS)


STUDY = Study(
    name="lm-rotary",
    question=(
        "With rotary positions, which tensor should be the value if it shares the key's projection?"
    ),
    description=(
        "Networks of 2 layers with 256 channels and 8 heads of 32 channels are trained on "
        "English novels in rows of 128 bytes. A quarter, half or all of a head's channels are "
        "rotated (base 100). If the value shares the key's projection, there are three choices: "
        "the value is the key before its rotation (none), the rotated key with the output rotated "
        "back (counter), or the rotated key itself (rotated). With the last choice, the value "
        "depends on the absolute position. Networks whose attention biases fall with the distance "
        "(ALiBi) are also compared. They do not rotate keys, so there is no choice of value."
    ),
    settings=(
        *(_rotary(part, meaning) for part in FRACTIONS for meaning in (COUNTER, NONE, ROTATED)),
        rotary_setting(
            BIASES,
            small_network(context=CONTEXT, num_heads=HEADS),
            (APART_BIASED, SHARED_BIASED),
            _LIMITS,
        ),
    ),
    variants=(APART, SHARED, APART_BIASED, SHARED_BIASED),
    baseline=APART,
    contrasts=(
        (SHARED_BIASED, APART_BIASED),
        *(
            CrossSettingContrast(SHARED, _name(part, meaning), reference, _name(part, COUNTER))
            for reference in (SHARED, APART)
            for meaning in (NONE, ROTATED)
            for part in FRACTIONS
        ),
        CrossSettingContrast(APART, _name("all", COUNTER), APART_BIASED, BIASES),
    ),
    seeds=(0, 1, 2, 3, 4),
)
