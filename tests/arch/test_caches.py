"""Options of a cache refuse what makes no sense."""

from typing import Any

import pytest

from qkvary.arch.caches import CacheOptions


def test_the_default_keeps_each_source_once() -> None:
    options = CacheOptions()
    assert (options.layout, options.storage, options.is_quantized) == ("sources", "growing", False)
    assert CacheOptions(storage="int4").is_quantized


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sources, rotated, split, input, latent.* got 'both'"):
        CacheOptions(layout="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"growing, preallocated, int8, int4.* got 'int5'"):
        CacheOptions(storage="int5")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"expected scales to be one of token, channel, got 'head'"
    ):
        CacheOptions(storage="int8", scales="head")  # type: ignore[arg-type]


@pytest.mark.parametrize("wishes", [{"scales": "channel"}, {"rotate": True}])
def test_what_only_codes_have_is_refused_without_them(wishes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected quantised .* got 'growing'; choices: int8, in"):
        CacheOptions(**wishes)
    assert CacheOptions(storage="int3", **wishes).bits == 3
    assert CacheOptions().bits is None
