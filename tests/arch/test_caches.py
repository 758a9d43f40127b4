"""Options of a cache refuse what makes no sense."""

import pytest

from qkvary.arch.caches import CacheOptions


def test_the_default_keeps_each_source_once() -> None:
    options = CacheOptions()
    assert (options.layout, options.storage, options.is_quantized) == ("sources", "growing", False)
    assert CacheOptions(storage="int4").is_quantized


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sources, rotated, split, input, latent.* got 'both'"):
        CacheOptions(layout="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"growing, preallocated, int8, int4.* got 'int2'"):
        CacheOptions(storage="int2")  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [{"group": 0}, {"residual": -1}])
def test_sizes_without_meaning_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="groups of at least 1 channel and a residual of at least"):
        CacheOptions(**sizes)
