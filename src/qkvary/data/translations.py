"""Sentences and their translations, line by line: Multi30k, or a folder of files named like its.

Source: Elliott et al. 2016, "Multi30K: Multilingual English-German Image Descriptions", task 1.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qkvary.data.checksums import MULTI30K_FILES
from qkvary.data.downloads import is_offline, keep_in_cache
from qkvary.data.files import decompress, download, find_file
from qkvary.data.folders import cache_directory
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import read_file

Language = Literal["de", "en"]
TextSplit = Literal["train", "validation", "test"]

MULTI30K = "multi30k"
URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "c9be912dc05a3ebf9ae5bb5f7f58c1791cda43ab/data/task1/raw"
)
LARGEST_FILE = 2**24
"""Maximum bytes of a file, compressed or not; the largest of Multi30k has 2 MB."""
_LANGUAGES: tuple[Language, ...] = ("de", "en")
_STEMS: Mapping[TextSplit, str] = {
    "train": "train",
    "validation": "val",
    "test": "test_2016_flickr",
}

Sentences = Mapping[Language, tuple[str, ...]]
"""The sentences of a split by language: those of one index translate each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translations:
    """A corpus of sentences in two languages."""

    splits: Mapping[TextSplit, Sentences]
    """The sentences of each split."""
    fingerprint: str
    """sha256 of the checksums of all files."""


@functools.lru_cache(maxsize=2)
def load_translations(data: str = MULTI30K) -> Translations:
    """Return a corpus, read once per process.

    The files of Multi30k are those below ``QKVARY_DATA`` or in the cache, or are downloaded into
    the cache.

    Args:
        data: ``multi30k``, or a folder with files of the same names.

    Raises:
        UsageError: if a file does not exist, or is not on this machine and downloads are off.
        DamagedError: if a file is not the published one, or not lines of UTF-8 that fit each other.
        DownloadError: if a download fails.
    """
    splits: dict[TextSplit, Sentences] = {}
    sums: dict[str, str] = {}
    for split, stem in _STEMS.items():
        lines: dict[Language, tuple[str, ...]] = {}
        counts: dict[str, int] = {}
        for language in _LANGUAGES:
            name = f"{stem}.{language}.gz"
            content, where = _load(name) if data == MULTI30K else _read(Path(data) / name)
            lines[language] = _read_lines(content, where)
            counts[where] = len(lines[language])
            sums[name] = hashlib.sha256(content).hexdigest()
            if data == MULTI30K:
                _check_sum(name, sums[name], where)
        _check_aligned(counts)
        splits[split] = lines
    return Translations(splits=splits, fingerprint=fingerprint(sums))


def fingerprint(sums: Mapping[str, str]) -> str:
    """Return the sha256 of a corpus from the sha256 of its files."""
    lines = "\n".join(f"{sums[name]} {name}" for name in sorted(sums))
    return hashlib.sha256(lines.encode()).hexdigest()


def _read_lines(content: bytes, where: str) -> tuple[str, ...]:
    """Return the lines of a gzip file of UTF-8, none of them empty."""
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


def _check_aligned(counts: Mapping[str, int]) -> None:
    if len(set(counts.values())) > 1:
        found = " and ".join(f"{count:,} in {where}" for where, count in counts.items())
        raise DamagedError(f"expected as many lines in each language, got {found}")


def _check_sum(name: str, found: str, where: str) -> None:
    if found != MULTI30K_FILES[name]:
        raise DamagedError(
            f"expected {where} with sha256 {MULTI30K_FILES[name]}, got {found}: another file, or a "
            "damaged one"
        )


def _load(name: str) -> tuple[bytes, str]:
    """Return a file of Multi30k and where it was found."""
    path = find_file(MULTI30K, name)
    if path is not None:
        return _read(path)
    if is_offline():
        raise UsageError(
            f"{MULTI30K}/{name} is not on this machine: put it below QKVARY_DATA, or unset "
            "HF_HUB_OFFLINE"
        )
    url = f"{URL}/{name}"
    content = download(url, f"put it into {MULTI30K} below QKVARY_DATA", limit=LARGEST_FILE)
    _check_sum(name, hashlib.sha256(content).hexdigest(), url)
    if cached := cache_directory():
        keep_in_cache(cached / MULTI30K / name, content)
    return content, url


def _read(path: Path) -> tuple[bytes, str]:
    return read_file(path, limit=LARGEST_FILE), str(path)
