"""Loads labelled texts: novels labelled by author, or the files ``FOLDER/LABEL/*.txt`` of a folder.

The texts of each label are sorted by the sha256 of their contents and then split. Every text is in
exactly one split.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from qkvary.data.documents import NULS
from qkvary.data.sources import CORPORA, find_local
from qkvary.data.splits import DataSplit
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import read_file, read_path
from qkvary.text.names import suggest

NOVELS = "english-novels"
"""The corpus whose files are named ``Author_Title_Year.txt``."""
HELD_OUT_SHARE = 0.1
"""Share of each label's texts in the validation split, equal to the share in the test split. Both
splits have at least one text of each label."""
FEWEST_TEXTS = len(get_args(DataSplit))
LARGEST_TEXT = 2**26


class LabelledText(NamedTuple):
    """One text of a label."""

    name: str
    data: NDArray[np.uint8]
    sha256: str


Splits = Mapping[DataSplit, tuple[tuple[LabelledText, ...], ...]]
"""The texts of each split, as one tuple per label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTexts:
    """Texts with labels, in three splits."""

    labels: tuple[str, ...]
    splits: Splits
    fingerprint: str
    """sha256 of labels, splits and contents."""


@functools.lru_cache(maxsize=2)
def load_labelled_texts(data: str = NOVELS, labels: tuple[str, ...] | None = None) -> LabelledTexts:
    """Return the texts with these labels (None: all labels), read once per process.

    ``data`` is a folder that has, for each label, a folder of ``.txt`` files, or it is
    ``english-novels``. The labels of ``english-novels`` are the authors of at least three novels.
    """
    if not data:
        # It would be the current folder.
        raise UsageError(f"expected {NOVELS} or a folder of texts with labels, got ''")
    files = _novels() if data == NOVELS else _list_folder(read_path(data, "a folder of texts"))
    for label in labels or ():
        if label not in files:
            raise UsageError(
                f"expected a label of the texts in {data}, got {label!r}; {suggest(label, files)}"
            )
    files = {label: some for label, some in files.items() if labels is None or label in labels}
    if len(files) < 2:
        found = f"{len(files)}{''.join(f': {label}' for label in files)}"
        raise UsageError(
            f"expected at least 2 labels (folders with .txt files) in {data}, got {found}"
        )
    seen: dict[str, Path] = {}
    groups: list[dict[DataSplit, tuple[LabelledText, ...]]] = []
    for label, paths in files.items():
        if len(paths) < FEWEST_TEXTS:
            raise UsageError(
                f"expected at least {FEWEST_TEXTS} .txt files of each label, one for each split, "
                f"got {len(paths)} of {label} in {data}"
            )
        texts = [_read(path) for path in paths]
        for text, path in zip(texts, paths, strict=True):
            if seen.setdefault(text.sha256, path) != path:
                raise UsageError(
                    f"expected different texts, got the same text in {seen[text.sha256]} and "
                    f"{path}: remove one of the files"
                )
        groups.append(split_texts(texts))
    splits: Splits = {split: tuple(one[split] for one in groups) for split in groups[0]}
    lines = [
        f"{split} {label} {text.sha256}"
        for split, labelled in splits.items()
        for label, texts in zip(files, labelled, strict=True)
        for text in texts
    ]
    fingerprint = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return LabelledTexts(labels=tuple(files), splits=splits, fingerprint=fingerprint)


def split_texts(texts: Sequence[LabelledText]) -> dict[DataSplit, tuple[LabelledText, ...]]:
    """Split three or more texts, sorted by sha256, into test, validation and training texts."""
    ordered = sorted(texts, key=lambda text: text.sha256)
    count = max(1, round(HELD_OUT_SHARE * len(ordered)))
    return {
        "train": tuple(ordered[2 * count :]),
        "validation": tuple(ordered[count : 2 * count]),
        "test": tuple(ordered[:count]),
    }


def _novels() -> dict[str, list[Path]]:
    folder = find_local(CORPORA[NOVELS])
    if folder is None:
        raise UsageError(
            f"{NOVELS} is not on this machine: put it at {CORPORA[NOVELS].local} below QKVARY_DATA"
        )
    authors: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*/*.txt")):
        authors.setdefault(path.stem.partition("_")[0], []).append(path)
    return {
        author: books for author, books in sorted(authors.items()) if len(books) >= FEWEST_TEXTS
    }


def _list_folder(folder: Path) -> dict[str, list[Path]]:
    if not folder.is_dir():
        raise UsageError(f"expected {NOVELS} or a folder of texts with labels, got {folder}")
    inner = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    return {one.name: sorted(one.glob("*.txt")) for one in inner}


def _read(path: Path) -> LabelledText:
    content = read_file(path, limit=LARGEST_TEXT)
    try:
        is_blank = not content.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise DamagedError(f"expected UTF-8 text in {path}, got {error}") from None
    if is_blank or NULS in content:
        raise DamagedError(
            f"expected text in {path}, got {'nothing' if is_blank else 'many NUL bytes'}"
        )
    data, sha256 = np.frombuffer(content, dtype=np.uint8), hashlib.sha256(content).hexdigest()
    return LabelledText(path.name, data, sha256)
