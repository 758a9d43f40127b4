"""Small prepared sets, and their expected contents, computed independently."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qkvary.data.documents import FileDocuments
from qkvary.data.preparation import PreparationSettings, prepare
from qkvary.data.prepared import PreparedData
from qkvary.data.sources import Source, Stream
from qkvary.data.tokenizers import ByteTokenizer, Tokenizer

TINY_GROUPS = PreparationSettings(workers=1, group_bytes=(40, 90), block_bytes=16)
"""Small enough that a few sentences fill several shards."""
BYTES = ByteTokenizer(has_separator=True)


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
    settings: PreparationSettings = TINY_GROUPS,
) -> PreparedData:
    """Prepare documents at ``folder / "set"``."""
    parts = {"train": train, "validation": validation}
    streams = [
        Stream(
            documents=FileDocuments(files=[write_documents(folder / "text", split, documents)]),
            split=split,
        )
        for split, documents in parts.items()
    ]
    source = Source(name="made up", streams=streams, files=[list(train), list(validation)])
    return prepare(source, tokenizer, folder / "set", tokenizer_name="own", settings=settings)


def plain_tokens(documents: Sequence[str]) -> list[int]:
    """The bytes of every document, stripped, and a separator after it."""
    return [
        token
        for document in documents
        if document.strip()
        for token in (*document.strip().encode(), 256)
    ]
