"""Preparation of a set from a source of documents: in parallel and resumable.

Documents are read in order, in blocks; threads encode blocks (the tokenizer libraries release the
GIL); results are collected in order and written in groups of shards. A restart resumes after the
last group.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from qkvary.data.documents import Document
from qkvary.data.encoding import EncodedDocument, Encoder, token_width
from qkvary.data.prepared import PreparedData, finished_plan, open_prepared
from qkvary.data.shard_groups import (
    PendingGroup,
    PreparationDirectory,
    unfinished_plan,
)
from qkvary.data.sources import Source, Stream
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.durable import clean_leftovers, make_directory
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue, encode

FIRST_GROUP_BYTES, LARGEST_GROUP_BYTES = 2**23, 2**28
"""UTF-8 bytes of text in the first group of shards, and in the largest; each group has twice as
many as the one before."""
BLOCK_BYTES = 2**20
"""Minimum bytes of text per block."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a preparation."""

    documents: int = 0
    """Number of encoded documents, including those of earlier starts."""
    tokens: int = 0
    """The tokens of these documents."""
    text_bytes: int = 0
    """The UTF-8 bytes of these documents."""
    total_bytes: int | None = None
    """The bytes of the source, if known."""
    resumed_bytes: int = 0
    """The part of ``text_bytes`` from earlier starts."""

    def show(self, display: Callable[..., None]) -> None:
        """Show the progress on a display of bytes."""
        note = f"{self.documents:,} documents, {self.tokens:,} tokens"
        display(self.text_bytes, self.total_bytes or 0, note)


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationSettings:
    """Settings of a preparation; only ``group_bytes`` changes the result."""

    workers: int | None = None
    """Number of threads; None for one per processor."""
    group_bytes: tuple[int, int] = (FIRST_GROUP_BYTES, LARGEST_GROUP_BYTES)
    """UTF-8 bytes of text in the first group of shards, and in the largest."""
    block_bytes: int = BLOCK_BYTES
    """Minimum bytes of text per block."""
    on_progress: ProgressCallback = field(default=lambda _progress: None)
    """Called after each block."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"expected at least one worker, got {self.workers}")


@dataclass(slots=True)
class _Block:
    documents: list[Document]
    position: JsonValue
    ends_group: bool


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    tokenizer_name: str,
    settings: PreparationSettings | None = None,
) -> PreparedData:
    """Prepare a set at ``folder``, or resume its preparation; open a complete set.

    Args:
        source: The documents.
        tokenizer: The tokenizer, which needs a separator.
        folder: The folder of the set.
        tokenizer_name: The name of the tokenizer.
        settings: The settings.

    Raises:
        UsageError: if there are no documents, one is not text, or ``folder`` holds another set.
        BusyError: if another process prepares there.
        ResourceError: if the disk is full, broken or not writable.
        DamagedError: if earlier files were changed.
        DownloadError: if the hub fails.
    """
    chosen = settings or PreparationSettings()
    make_directory(folder)
    directory = PreparationDirectory(folder)
    try:
        clean_leftovers(folder)
        source = pin_source(source, folder)
        description = (encode(tokenizer.describe()) + "\n").encode()
        plan = _plan(source, description, tokenizer_name, chosen)
        finished = finished_plan(folder)
        if finished is None:
            _check_same(unfinished_plan(folder), plan, folder)
            _run(directory, source, tokenizer, description, plan, chosen)
        else:
            _check_same(finished, plan, folder)
        directory.clear()
    finally:
        directory.release()
    # Groups of earlier starts were verified when they were loaded; those of this start are intact.
    return open_prepared(folder, verify=finished is not None, tokenizer=tokenizer)


def pin_source(source: Source, folder: Path) -> Source:
    """Return the source at the commit with which the set was started, or at today's commit.

    Raises:
        UsageError: if the source no longer exists.
        DamagedError: if earlier files were changed.
        DownloadError: if the hub fails.
    """
    if source.pin is None:
        return source
    finished = finished_plan(folder)
    plan = unfinished_plan(folder) if finished is None else finished
    files = None if plan is None else plan["source"]["files"]
    commit = cast("dict[str, Any]", files).get("commit") if isinstance(files, dict) else None
    # A complete set from a version that did not record commits is kept.
    return source if commit is None and finished is not None else source.pin(commit)


def _plan(
    source: Source, description: bytes, tokenizer_name: str, settings: PreparationSettings
) -> dict[str, Any]:
    return {
        "source": source.describe(),
        "tokenizer": {
            "name": tokenizer_name,
            "sha256": hashlib.sha256(description).hexdigest(),
        },
        "portions": list(settings.group_bytes),
    }


def _check_same(stored: Any, plan: Mapping[str, Any], folder: Path) -> None:
    """Refuse to mix two sets in one folder."""
    if stored is None or encode(stored) == encode(plan):
        return
    for name, wanted in plan.items():
        if encode(stored.get(name)) != encode(wanted):
            raise UsageError(
                f"{folder} holds a set with another {name}: remove it, or prepare elsewhere with "
                "`qkvary data prepare ... --out DIR`"
            )


def _run(
    directory: PreparationDirectory,
    source: Source,
    tokenizer: Tokenizer,
    description: bytes,
    plan: Mapping[str, Any],
    settings: PreparationSettings,
) -> None:
    if unfinished_plan(directory.folder) is None:
        directory.begin(plan)
    directory.load()
    encoder = Encoder(tokenizer)
    progress = Progress(total_bytes=source.total_bytes)
    for group in directory.groups:
        for tokens, documents, text_bytes in group.shards.values():
            progress.tokens += tokens
            progress.documents += documents
            progress.text_bytes += text_bytes
    progress.resumed_bytes = progress.text_bytes
    settings.on_progress(progress)
    for number, stream in enumerate(source.streams):
        _run_stream(directory, source, stream, number, encoder, settings, progress)
    for split in ("train", "validation"):
        if not directory.count(split, 1):
            raise UsageError(
                f"expected documents for {split} in {source.name}, got none; name them with "
                "`qkvary data prepare ... --validation PATH`, or change the share with its "
                "--held-out"
            )
    about: dict[str, JsonValue] = {
        "name": source.name,
        "plan": plan,
        "token_bytes": token_width(tokenizer.vocabulary),
        "tokenizer": {
            "name": plan["tokenizer"]["name"],
            "vocabulary": tokenizer.vocabulary,
            "separator": tokenizer.separator,
        },
        "overlap": directory.count_overlap(),
    }
    directory.finish(about, description)


def _run_stream(
    directory: PreparationDirectory,
    source: Source,
    stream: Stream,
    number: int,
    encoder: Encoder,
    settings: PreparationSettings,
    progress: Progress,
) -> None:
    groups = [group for group in directory.groups if group.stream == number]
    if groups and groups[-1].ended:
        return
    position = groups[-1].position if groups else None
    tokens = groups[-1].stream_tokens if groups else 0
    pending = PendingGroup()
    blocks = _read_blocks(stream, position, directory, settings)
    with closing(_encode_blocks(blocks, encoder, settings.workers)) as encoded:
        for block, documents in encoded:
            for document in documents:
                split = stream.split or source.split_of(document.digest)
                pending.add(split, document)
                tokens += len(document.tokens) if split == (stream.split or "train") else 0
                progress.documents += 1
                progress.tokens += len(document.tokens)
                progress.text_bytes += document.text_bytes
                if stream.max_tokens is not None and tokens >= stream.max_tokens:
                    break
            full = stream.max_tokens is not None and tokens >= stream.max_tokens
            settings.on_progress(progress)
            if full or block.ends_group:
                directory.add(
                    pending,
                    stream=number,
                    position=block.position,
                    ended=full,
                    stream_tokens=tokens,
                )
                pending = PendingGroup()
            if full:
                return
    directory.add(pending, stream=number, position=None, ended=True, stream_tokens=tokens)


def _read_blocks(
    stream: Stream,
    position: JsonValue,
    directory: PreparationDirectory,
    settings: PreparationSettings,
) -> Iterator[_Block]:
    """Yield documents in blocks; a group ends once enough text was read since the last group."""
    first, largest = settings.group_bytes
    number = len(directory.groups)
    waiting: list[Document] = []
    block_size = group_size = 0
    for document in stream.documents.read(position):
        waiting.append(document)
        # Characters, because UTF-8 bytes are only known after encoding.
        block_size += len(document.text)
        group_size += len(document.text)
        ends_group = group_size >= min(first << min(number, 40), largest)
        if ends_group or block_size >= settings.block_bytes:
            place = stream.documents.position() if ends_group else None
            yield _Block(waiting, place, ends_group)
            waiting, block_size = [], 0
        if ends_group:
            number, group_size = number + 1, 0
    if waiting:
        yield _Block(waiting, None, ends_group=False)


def _encode_blocks(
    blocks: Iterator[_Block], encoder: Encoder, workers: int | None
) -> Generator[tuple[_Block, list[EncodedDocument]]]:
    """Yield the blocks in order with their tokens; a few are encoded ahead."""
    count = workers or os.cpu_count() or 1
    if count == 1:
        for block in blocks:
            yield block, encoder.encode(block.documents)
        return
    waiting: deque[tuple[_Block, Future[list[EncodedDocument]]]] = deque()
    threads = ThreadPoolExecutor(count, thread_name_prefix="encode")
    try:
        for block in blocks:
            waiting.append((block, threads.submit(encoder.encode, block.documents)))
            if len(waiting) > 2 * count:
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
