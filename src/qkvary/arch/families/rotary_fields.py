"""The scaling of rotary positions in a Hugging Face configuration.

Every setting is used or refused by name, because ignoring one would change the results.

Source: ``modeling_rope_utils`` of transformers 5.23.0.
"""

import math
from collections.abc import Mapping

from qkvary.arch.attention import PositionConfig
from qkvary.arch.families.attention_fields import rotary_section
from qkvary.arch.families.fields import Fields
from qkvary.arch.rotary import RotaryScaling

PLAIN = "default"
ORIGINAL = "original_max_position_embeddings"
LONGEST = "max_position_embeddings"
_ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
GROWTH = "llama_4_scaling_beta"
"""The rotary setting with the growth of queries, which only some families have."""
_GROWING: Mapping[str, tuple[str, ...]] = {"ministral3": (GROWTH, LONGEST)}
"""Additional rotary settings that these families may have; ``LONGEST`` is not used."""
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    PLAIN: (),
    # transformers reads no original length for these two.
    "linear": ("factor", ORIGINAL),
    "dynamic": ("factor",),
    "yarn": (
        *("factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": ("factor", ORIGINAL, "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", ORIGINAL, "attention_factor", "short_factor", "long_factor"),
}
"""The settings of each form of scaling."""


def read_scaling(fields: Fields, channels: int, base: float) -> RotaryScaling | None:
    """Return the scaling of a head's rotated ``channels``, or ``None`` if there is none."""
    section = rotary_section(fields)
    form = section.text("rope_type", "type", default=PLAIN)
    if fields.family == "phi3" and form in ("su", "yarn"):
        # The names in older files.
        form = "longrope"
    if form not in _SETTINGS:
        raise section.refuse(
            "rope_type" if section.has("rope_type") else "type",
            f"one of the rotary types {', '.join(_SETTINGS)}",
        )
    for name in section.content:
        known = (*_ALWAYS, *_SETTINGS[form], *_GROWING.get(fields.family, ()))
        if section.has(name) and name not in known:
            raise section.refuse(name, f"no value, because {form} scaling has no such field,")
    if form != "yarn" and section.has(GROWTH):
        reason = "no value, because only rope type yarn scales queries by position,"
        raise section.refuse(GROWTH, reason)
    if form == PLAIN:
        return None
    scaling = _read_form(form, section, fields)
    scaling.check(channels)
    if form == "yarn" and base <= 1:
        raise section.refuse("rope_theta", "a rotary base above 1 (yarn scaling requires it)")
    return scaling


def read_longest(fields: Fields) -> int | None:
    """Return the larger of the configured length and the length that rotary scaling allows."""
    section, longest = rotary_section(fields), fields.optional_size(LONGEST)
    form = section.text("rope_type", "type", default=PLAIN)
    if longest is None or form not in ("dynamic", "yarn") or not section.has("factor"):
        return longest
    original = longest if form == "dynamic" else _original(section, fields)
    return max(longest, int(section.number("factor") * original))


def write_rotation(position: PositionConfig) -> dict[str, object]:
    """Return transformers' rotary settings for heads whose channels are all rotated."""
    scaling = position.scaling
    written: dict[str, object] = {"rope_type": PLAIN, "rope_theta": position.rotary_base}
    if scaling is None:
        return written
    values = {
        "factor": scaling.factor,
        ORIGINAL: scaling.original_tokens,
        "attention_factor": scaling.attention_factor,
        "beta_fast": scaling.fast,
        "beta_slow": scaling.slow,
        "high_freq_factor": scaling.fast,
        "low_freq_factor": scaling.slow,
        "truncate": scaling.whole_channels,
        "short_factor": [*scaling.short],
        "long_factor": [*scaling.long],
    }
    own = {name: values[name] for name in _SETTINGS[scaling.form] if name in values}
    if scaling.query_growth:
        own[GROWTH] = scaling.query_growth
    if scaling.form == "linear":
        del own[ORIGINAL]
    return {**written, "rope_type": scaling.form, **own}


def _read_form(form: str, section: Fields, fields: Fields) -> RotaryScaling:
    if form == "yarn":
        return _read_yarn(section, fields)
    if form == "longrope":
        return _read_longrope(section, fields)
    factor = section.number("factor")
    if form == "linear":
        return RotaryScaling(form="linear", factor=factor)
    if form == "dynamic":
        return RotaryScaling(form="dynamic", factor=factor, original_tokens=fields.size(LONGEST))
    return RotaryScaling(
        form="llama3",
        factor=factor,
        original_tokens=_original(section, fields),
        slow=section.number("low_freq_factor"),
        fast=section.number("high_freq_factor"),
    )


def _read_yarn(section: Fields, fields: Fields) -> RotaryScaling:
    original = _original(section, fields)
    factor = section.number("factor", default=fields.size(LONGEST, default=1) / original)
    scales = [section.number(name, default=0.0) for name in ("mscale", "mscale_all_dim")]
    usual = (
        _magnitude(factor, scales[0]) / _magnitude(factor, scales[1])
        if all(scales)
        else _magnitude(factor, 1.0)
    )
    return RotaryScaling(
        form="yarn",
        factor=factor,
        original_tokens=original,
        slow=section.number("beta_slow", default=0.0) or 1.0,
        fast=section.number("beta_fast", default=0.0) or 32.0,
        whole_channels=section.flag("truncate", default=True),
        attention_factor=section.number("attention_factor", default=usual),
        query_growth=section.number(GROWTH, default=0.0),
    )


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _read_longrope(section: Fields, fields: Fields) -> RotaryScaling:
    original = _original(section, fields)
    factor = section.number("factor", default=fields.size(LONGEST) / original)
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return RotaryScaling(
        form="longrope",
        factor=factor,
        original_tokens=original,
        short=_numbers(section, "short_factor"),
        long=_numbers(section, "long_factor"),
        attention_factor=section.number("attention_factor", default=usual),
    )


def _original(section: Fields, fields: Fields) -> int:
    """Return the context length before scaling.

    The value outside ``section`` takes precedence, as in transformers.
    """
    inside, outside = (one.optional_size(ORIGINAL) for one in (section, fields))
    return outside or inside or fields.size(LONGEST)


def _numbers(section: Fields, name: str) -> tuple[float, ...]:
    found = section.items(name)
    if found is None:
        raise section.missing((name,))
    return tuple(Fields({name: one}, section.family).number(name) for one in found)
