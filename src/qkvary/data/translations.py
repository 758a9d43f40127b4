"""Loads sentences and their translations, line by line, from Multi30k or from a user's files.

Source: Elliott et al. 2016, "Multi30K: Multilingual English-German Image Descriptions", task 1.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qkvary.data.checksums import MULTI30K_FILES
from qkvary.data.files import decompress, load_published
from qkvary.data.splits import DataSplit
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import read_file

Language = Literal["de", "en"]

MULTI30K = "multi30k"
URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "c9be912dc05a3ebf9ae5bb5f7f58c1791cda43ab/data/task1/raw"
)
LARGEST_FILE = 2**28
"""Maximum size of a file in bytes, both compressed and uncompressed."""
_LANGUAGES: tuple[Language, ...] = ("de", "en")
HELD_OUT = 20
"""The user's files are split by position. At their end, ``1 / HELD_OUT`` of the lines are for
validation, followed by as many lines for the test."""
_STEMS: Mapping[DataSplit, str] = {
    "train": "train",
    "validation": "val",
    "test": "test_2016_flickr",
}

Sentences = Mapping[str, tuple[str, ...]]
"""The sentences of a split by language; sentences with the same index are translations of each
other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translations:
    """A corpus of sentences in two languages."""

    splits: Mapping[DataSplit, Sentences]
    fingerprint: str
    """The sha256 of the checksums of the files."""


@functools.lru_cache(maxsize=2)
def load_translations(
    data: str = MULTI30K, languages: tuple[str, ...] = _LANGUAGES
) -> Translations:
    """Return a corpus; the corpus is read once per process.

    ``data`` is ``multi30k``, a folder whose files are named as in Multi30k, or a path prefix: for
    the languages fr and en, the prefix ``mine`` reads ``mine.fr`` and ``mine.en``. Multi30k is read
    from ``QKVARY_DATA`` or from the cache, and is downloaded into the cache if it is missing.
    """
    if data != MULTI30K and not Path(data).is_dir():
        return _load_pair(data, languages)
    if data == MULTI30K and {*languages} != {*_LANGUAGES}:
        raise UsageError(
            f"expected the languages de and en for {data}, got {' and '.join(languages)}"
        )
    splits: dict[DataSplit, Sentences] = {}
    sums: dict[str, str] = {}
    for split, stem in _STEMS.items():
        found = {language: _read(data, f"{stem}.{language}.gz") for language in languages}
        splits[split] = _decode_pair(found)
        for language, (content, _) in found.items():
            sums[f"{stem}.{language}.gz"] = hashlib.sha256(content).hexdigest()
    return Translations(splits=splits, fingerprint=fingerprint(sums))


def _decode_pair(found: Mapping[str, tuple[bytes, str]]) -> Sentences:
    """Return the lines of each language, given the contents and path of its file."""
    lines = {name: _read_lines(*one) for name, one in found.items()}
    if len({len(some) for some in lines.values()}) > 1:
        counts = " and ".join(f"{len(lines[name]):,} in {at}" for name, (_, at) in found.items())
        raise DamagedError(f"expected equally many lines in each language, got {counts}")
    return lines


def _load_pair(data: str, languages: tuple[str, ...]) -> Translations:
    """Return the translations in two files. The last lines of both files are held out."""
    found: dict[str, tuple[bytes, str]] = {}
    for language in languages:
        paths = [Path(f"{data}.{language}{end}") for end in ("", ".gz", ".xz")]
        path = next((one for one in paths if one.is_file()), None)
        if path is None:
            raise UsageError(
                f"expected the file {paths[0]} (or the same name with .gz or .xz), or a folder at "
                f"{data} whose files are named as in Multi30k, got neither"
            )
        found[language] = read_file(path, limit=LARGEST_FILE), str(path)
    lines = _decode_pair(found)
    (total,) = {len(some) for some in lines.values()}
    held_out = total // HELD_OUT
    if not held_out:
        raise UsageError(f"expected at least {HELD_OUT} lines in {data}, got {total}")
    sums = {
        language: hashlib.sha256("\n".join(some).encode()).hexdigest()
        for language, some in lines.items()
    }
    ends = (0, total - 2 * held_out, total - held_out, total)
    bounds = zip(("train", "validation", "test"), ends[:-1], ends[1:], strict=True)
    return Translations(
        splits={
            split: {name: some[first:last] for name, some in lines.items()}
            for split, first, last in bounds
        },
        fingerprint=fingerprint(sums),
    )


def fingerprint(sums: Mapping[str, str]) -> str:
    """Return the sha256 of a corpus, computed from the sha256 values of the corpus files."""
    lines = "\n".join(f"{sums[name]} {name}" for name in sorted(sums))
    return hashlib.sha256(lines.encode()).hexdigest()


def _read_lines(content: bytes, where: str) -> tuple[str, ...]:
    """Return the lines of a file of UTF-8, none of them empty."""
    try:
        text = decompress(content, where, limit=LARGEST_FILE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedError(f"expected UTF-8 text in {where}, got {error}") from None
    lines = [line.strip() for line in text.removesuffix("\n").split("\n")]
    if "" in lines:
        raise DamagedError(
            f"expected a sentence on every line of {where}, got none on line {lines.index('') + 1}"
        )
    return tuple(lines)


def _read(data: str, name: str) -> tuple[bytes, str]:
    """Return the contents of a file of a corpus, and its path or URL."""
    if data != MULTI30K:
        path = Path(data) / name
        return read_file(path, limit=LARGEST_FILE), str(path)
    return load_published(
        MULTI30K,
        (name,),
        f"{URL}/{name}",
        MULTI30K_FILES[name],
        name=f"{MULTI30K}/{name}",
        put=f"put it into {MULTI30K} below QKVARY_DATA",
        limit=LARGEST_FILE,
    )
