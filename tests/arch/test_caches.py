"""Options of a cache refuse what makes no sense."""

from typing import Any

import pytest

from qkvary.arch.caches import CacheOptions


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"layout": "both"}, r"sources, rotated, split, input, latent.* got 'both'"),
        ({"storage": "int5"}, r"growing, preallocated, int8, int4.* got 'int5'"),
        ({"scales": "channel"}, r"expected quantised .* got 'growing'; choices: int8, in"),
        ({"rotate": True}, r"expected quantised .* got 'growing'; choices: int8, in"),
        ({"group": 0}, "expected groups of at least 1 channel, .* got 0, 32 and 0"),
    ],
)
def test_what_makes_no_sense_is_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CacheOptions(**choices)


def test_bits_are_those_of_the_storage() -> None:
    assert [CacheOptions(storage=one).bits for one in ("growing", "int3")] == [None, 3]
