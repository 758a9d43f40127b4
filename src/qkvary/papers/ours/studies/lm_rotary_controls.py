"""Trains the controls of ``lm-rotary``: separate but rotated values, and learned positions."""

from dataclasses import replace

from qkvary.arch.attention import ValueRope
from qkvary.arch.networks import LanguageModelConfig
from qkvary.papers.ours.small_language_models import (
    CONTEXT,
    POSITIONS_PER_STEP,
    ROTARY_STEPS,
    describe_scale,
    rotary_setting,
    small_network,
    small_rotary,
)
from qkvary.papers.ours.studies.lm_rotary import APART, HEADS, SHARED
from qkvary.studies.study import CrossSettingContrast, Study

SHARED_LEARNED, APART_LEARNED = "Q-K=V", "QKV"

COUNTER, ROTATED = "all rotates, counter", "all rotates, rotated"
VALUE_COUNTER, VALUE_ROTATED = "values rotate too, counter", "values rotate too, rotated"
LEARNED = "learned positions"

_LIMITS = (
    (
        f"These are small networks trained on {ROTARY_STEPS * POSITIONS_PER_STEP:,} bytes, in rows "
        f"of {CONTEXT} that all begin at position 0, as in lm-rotary."
    ),
    describe_scale(networks=7, seeds=5, presets=("lm-30m", "lm-124m", "lm-350m")),
)


def _network(value: ValueRope, *, rotates_value: bool = False) -> LanguageModelConfig:
    position = replace(small_rotary(value=value), rotates_value=rotates_value)
    return small_network(context=CONTEXT, num_heads=HEADS, position=position)


STUDY = Study(
    name="lm-rotary-controls",
    question=(
        "Does lm-rotary measure the effect of rotating the value, or the effect of sharing the "
        "key's projection with the value?"
    ),
    description=(
        "The networks, rows and training are those of lm-rotary with all channels rotated. In "
        "lm-rotary, the value is rotated only if it shares the key's projection. In this study, "
        "a value with a separate projection is rotated too, and the output is either rotated "
        "back (counter) or not rotated back (rotated). Networks with learned positions are also "
        "compared: nothing is rotated in them, and a value that shares the key's projection "
        "equals the key."
    ),
    settings=(
        rotary_setting(COUNTER, _network("counter"), (APART, SHARED), _LIMITS),
        rotary_setting(ROTATED, _network("rotated"), (SHARED,), _LIMITS),
        rotary_setting(VALUE_COUNTER, _network("counter", rotates_value=True), (APART,), _LIMITS),
        rotary_setting(VALUE_ROTATED, _network("rotated", rotates_value=True), (APART,), _LIMITS),
        rotary_setting(
            LEARNED,
            replace(_network("counter"), positions="learned"),
            (APART_LEARNED, SHARED_LEARNED),
            _LIMITS,
        ),
    ),
    variants=(APART, SHARED, APART_LEARNED, SHARED_LEARNED),
    baseline=APART,
    contrasts=(
        (SHARED_LEARNED, APART_LEARNED),
        CrossSettingContrast(APART, VALUE_COUNTER, APART, COUNTER),
        CrossSettingContrast(APART, VALUE_ROTATED, APART, COUNTER),
        CrossSettingContrast(SHARED, COUNTER, APART, VALUE_COUNTER),
        CrossSettingContrast(SHARED, ROTATED, APART, VALUE_ROTATED),
        CrossSettingContrast(APART_LEARNED, LEARNED, APART, COUNTER),
    ),
    seeds=(0, 1, 2, 3, 4),
)
