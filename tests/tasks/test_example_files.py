import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.storage.errors import DamagedError
from qkvary.tasks.example_files import (
    maps_from_bytes,
    maps_to_bytes,
    samples_from_bytes,
    samples_to_bytes,
)
from qkvary.tasks.examples import AttentionExample, Sample


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.text(), min_size=1, max_size=5),
    st.data(),
)
def test_maps_come_back(layers: int, heads: int, tokens: list[str], data: st.DataObject) -> None:
    size = len(tokens)
    targets = data.draw(st.lists(st.none() | st.integers(0, 7), min_size=size, max_size=size))
    maps = np.random.default_rng(0).random((layers, heads, size, size), dtype=np.float32)
    example = AttentionExample(maps=maps, tokens=tuple(tokens), targets=tuple(targets))
    found = maps_from_bytes(maps_to_bytes(example))
    np.testing.assert_array_equal(found.maps, maps)
    assert (found.tokens, found.targets) == (example.tokens, example.targets)


def test_maps_of_several_kinds_of_layers_come_back() -> None:
    def make(kind: str, rows: int, columns: int) -> AttentionExample:
        maps = np.random.default_rng(rows).random((2, 3, rows, columns), dtype=np.float32)
        tokens = tuple(f"{kind}{column}" for column in range(columns))
        return AttentionExample(kind=kind, maps=maps, tokens=tokens, targets=(1,) * rows)

    others = (make("own", 4, 4), make("more", 5, 5))
    example = dataclasses.replace(make("cross", 4, 7), others=others)
    found = maps_from_bytes(maps_to_bytes(example))
    for one, other in zip((example, *others), (found, *found.others), strict=True):
        np.testing.assert_array_equal(one.maps, other.maps)
        assert (one.kind, one.tokens, one.targets) == (other.kind, other.tokens, other.targets)


def sample(number: int, pictures: bool) -> Sample:
    drawn = np.random.default_rng(number)
    return Sample(
        text=f"ü{number}",
        truth="3",
        answer=str(number),
        pictures=drawn.integers(0, 256, (2, 3, 5, 7), dtype=np.uint8) if pictures else None,
    )


@pytest.mark.parametrize("pictures", [False, True])
def test_samples_come_back(pictures: bool) -> None:
    samples = [sample(number, pictures) for number in range(3)]
    found = samples_from_bytes(samples_to_bytes(samples))
    for one, other in zip(samples, found, strict=True):
        assert (one.text, one.truth, one.answer) == (other.text, other.truth, other.answer)
        np.testing.assert_array_equal(one.pictures, other.pictures)


def test_pictures_are_in_all_or_in_none() -> None:
    with pytest.raises(ValueError, match="expected pictures in all samples or in none"):
        samples_to_bytes([sample(0, pictures=True), sample(1, pictures=False)])


CONTENTS = samples_to_bytes([sample(0, pictures=True)])


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (maps_from_bytes, b""),
        (maps_from_bytes, b"x" * 50),
        (samples_from_bytes, b""),
        (samples_from_bytes, CONTENTS[:-1]),
        (samples_from_bytes, CONTENTS.replace(b"texts", b"textz")),
    ],
)
def test_what_holds_something_else_is_named(read: Callable[[bytes], object], data: bytes) -> None:
    what = "attention maps" if read is maps_from_bytes else "samples"
    with pytest.raises(DamagedError, match=f"holds no {what}"):
        read(data)
