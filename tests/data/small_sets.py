"""Small prepared sets, and their expected contents, computed independently."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from qkvary.data import preparation
from qkvary.data.documents import FileDocuments
from qkvary.data.preparation import OnProgress, prepare
from qkvary.data.prepared import PreparedData, TokenSplit
from qkvary.data.sources import Source, Stream
from qkvary.data.tokenizers import ByteTokenizer, Tokenizer

BYTES = ByteTokenizer(has_separator=True)


def empty_set(name: str, *splits: str) -> PreparedData:
    """Describe a set of bytes in the folder ``/here`` that has no files."""
    about = {
        "name": name,
        "token_bytes": 2,
        "plan": {"source": {"held_out": None}},
        "splits": {
            split: {"shards": [[0, 0]], "text_bytes": 0, "tokens": 0, "documents": 0}
            for split in splits
        },
    }
    parts = {split: TokenSplit(Path("/here"), split, about) for split in splits}
    return PreparedData(
        path=Path("/here"), fingerprint="f" * 64, tokenizer=BYTES, splits=parts, about=about
    )


@contextmanager
def tiny_groups(groups: tuple[int, int] = (40, 90), block: int = 16) -> Iterator[None]:
    """Groups and blocks so small that a few sentences fill several shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "GROUP_BYTES", groups)
        patch.setattr(preparation, "BLOCK_BYTES", block)
        yield


def silent(_bytes: int, _total: int, _note: str) -> None:
    """Show no progress."""


def made_up(count: int, seed: int) -> list[str]:
    """Documents of 1 to 23 letters."""
    generator = np.random.default_rng(seed)
    alphabet = list("abcdefghé ")
    return [
        "x" + "".join(generator.choice(alphabet, size=int(generator.integers(0, 23))))
        for _ in range(count)
    ]


def write_documents(folder: Path, split: str, documents: Sequence[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}.txt"
    path.write_text("<|endoftext|>".join(documents), "utf-8")
    return path


def make_set(
    folder: Path,
    train: Sequence[str],
    validation: Sequence[str] = ("held out",),
    *,
    tokenizer: Tokenizer = BYTES,
    groups: tuple[int, int] = (40, 90),
    block: int = 16,
    workers: int = 1,
    on_progress: OnProgress = silent,
) -> PreparedData:
    """Prepare documents at ``folder / "set"``, in tiny groups."""
    parts = {"train": train, "validation": validation}
    streams = [
        Stream(
            documents=FileDocuments(files=[write_documents(folder / "text", split, documents)]),
            split=split,
        )
        for split, documents in parts.items()
    ]
    source = Source(name="made up", streams=streams, files=[list(train), list(validation)])
    with tiny_groups(groups, block):
        return prepare(
            source,
            tokenizer,
            folder / "set",
            tokenizer_name="own",
            workers=workers,
            on_progress=on_progress,
        )


def plain_tokens(documents: Sequence[str]) -> list[int]:
    """The bytes of every document, stripped, and a separator after it."""
    return [
        token
        for document in documents
        if document.strip()
        for token in (*document.strip().encode(), 256)
    ]
