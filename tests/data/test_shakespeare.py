"""The shipped text is the published one."""

import hashlib
import lzma
from importlib.resources import files

import pytest

from qkvary.data.checksums import TINY_SHAKESPEARE_SHA256
from qkvary.data.shakespeare import FILE, load_shakespeare, read_text
from qkvary.storage.errors import DamagedError


def packed() -> bytes:
    return (files("qkvary.data") / FILE).read_bytes()


def test_text_is_the_published_one() -> None:
    text = read_text(packed())
    assert len(text) == 1_115_394
    assert len(set(text)) == 65
    assert hashlib.sha256(text.encode()).hexdigest() == TINY_SHAKESPEARE_SHA256
    assert text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.")


def test_split_is_the_published_one() -> None:
    train, held_out = load_shakespeare().split(0.9)
    assert (len(train), len(held_out)) == (1_003_854, 111_540)


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: b"text" + data[4:]])
def test_a_file_that_cannot_be_unpacked_is_refused(damage: object) -> None:
    with pytest.raises(DamagedError, match=r"cannot be unpacked \(.*\); reinstall qkvary"):
        read_text(damage(packed()))


def test_another_text_is_refused() -> None:
    other = lzma.compress(read_text(packed()).replace("thou", "thee", 1).encode(), preset=0)
    with pytest.raises(DamagedError, match=f"with sha256 {TINY_SHAKESPEARE_SHA256}, got"):
        read_text(other)
