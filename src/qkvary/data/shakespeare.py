"""Tiny Shakespeare: 1,115,394 characters of the plays, shipped inside the package.

Source: karpathy/char-rnn, ``data/tinyshakespeare/input.txt``; the text is in the public domain.
"""

import functools
import hashlib
import lzma
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from qkvary.data.checksums import TINY_SHAKESPEARE_SHA256
from qkvary.storage.errors import DamagedError

FILE = "tiny_shakespeare.txt.xz"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedText:
    """A text as character ids."""

    alphabet: str
    """The distinct characters, sorted; a character's id is its index."""
    codes: NDArray[np.int64]
    """The id of each character."""

    def split(self, fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first ``fraction`` of the character ids, rounded down, and the rest."""
        end = int(fraction * len(self.codes))
        return self.codes[:end], self.codes[end:]


def read_text(packed: bytes) -> str:
    """Return the text in the compressed file, after verifying its checksum."""
    advice = "reinstall qkvary"
    try:
        raw = lzma.decompress(packed)
    except lzma.LZMAError as error:
        raise DamagedError(f"{FILE} cannot be unpacked ({error}); {advice}") from error
    found = hashlib.sha256(raw).hexdigest()
    if found != TINY_SHAKESPEARE_SHA256:
        raise DamagedError(
            f"expected {FILE} with sha256 {TINY_SHAKESPEARE_SHA256}, got {found}; {advice}"
        )
    return raw.decode("ascii")


def load_text() -> str:
    """Return the decompressed text."""
    return read_text((files("qkvary.data") / FILE).read_bytes())


@functools.cache
def load_shakespeare() -> EncodedText:
    """Return the text as character ids. It is decompressed once per process."""
    letters, codes = np.unique(
        np.frombuffer(load_text().encode("ascii"), np.uint8), return_inverse=True
    )
    codes = codes.astype(np.int64)
    codes.flags.writeable = False
    return EncodedText(alphabet=letters.tobytes().decode("ascii"), codes=codes)
