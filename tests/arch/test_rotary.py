"""Scaled rotary positions: what makes no sense is refused, and lengths choose the divisors."""

from typing import Any

import pytest

from qkvary.arch.rotary import RotaryScaling
from tests.small_networks import small_config

LISTS: dict[str, Any] = {"short": (1.0, 2.0), "long": (3.0, 4.0)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"form": "ntk"}, "expected form to be one of linear, dynamic"),
        ({"form": "linear", "factor": 0.0}, "positive numbers of rotary scaling, got 0"),
        ({"form": "yarn", "attention_factor": -1.0}, "positive numbers of rotary"),
        ({"form": "yarn", "original_tokens": 0}, "expected original_tokens of RotaryScaling in 1 "),
        ({"form": "yarn", "slow": 32.0}, "expected slow below fast for yarn"),
        ({"form": "dynamic", "factor": 0.5}, "a factor of at least 1 for dynamic, got 0.5"),
        ({"form": "longrope"}, "none for other forms, got 0 and 0 for longrope"),
        ({"form": "linear", **LISTS}, "none for other forms, got 2 and 2 for linear"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RotaryScaling(**fields)


@pytest.mark.parametrize(
    ("scaling", "channels", "message"),
    [
        (RotaryScaling(form="longrope", **LISTS), 6, "expected 3 divisors for 6 rotated channels"),
        (RotaryScaling(form="dynamic", factor=2.0), 2, "at least 4 rotated channels"),
    ],
)
def test_a_layer_has_the_channels_of_its_scaling(
    scaling: RotaryScaling, channels: int, message: str
) -> None:
    sizes = {"d_model": 8, "num_heads": 1, "head_dim": channels, "rotary_fraction": 1.0}
    with pytest.raises(ValueError, match=message):
        small_config("QKV@rotary", scaling=scaling, **sizes)


def test_the_length_chooses_among_lists_and_bases() -> None:
    listed = RotaryScaling(form="longrope", original_tokens=5, **LISTS)
    assert listed.depends_on_length
    assert listed.divisors(4, 10.0, 5) == (1.0, 2.0)
    assert listed.divisors(4, 10.0, 6) == (3.0, 4.0)
    fixed = RotaryScaling(form="longrope", short=(1.0, 2.0), long=(1.0, 2.0))
    assert not fixed.depends_on_length
    growing = RotaryScaling(form="dynamic", factor=3.0, original_tokens=5)
    assert growing.divisors(4, 10.0, 5) == (1.0, 1.0)
    # A text twice as long: 3 x 2 - 2 = 4 times the base, to the power of 4 / 2.
    assert growing.divisors(4, 10.0, 10) == (1.0, 4.0)
