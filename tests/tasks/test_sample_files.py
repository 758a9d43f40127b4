"""Samples are read as they were written."""

import numpy as np
import pytest

from qkvary.storage.errors import DamagedError
from qkvary.tasks.example_files import samples_from_bytes, samples_to_bytes
from qkvary.tasks.examples import Sample


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


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_what_holds_no_samples_is_named(damage: str) -> None:
    data = samples_to_bytes([sample(0, pictures=True)])
    broken = {"cut": data[:-1], "empty": b"", "other": data.replace(b"texts", b"textz")}[damage]
    with pytest.raises(DamagedError, match="holds no samples"):
        samples_from_bytes(broken)
