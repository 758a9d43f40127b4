"""From a source of documents to a prepared set: once, in parallel, whatever interrupts it.

Documents are read in order, a block at a time; threads turn blocks into tokens (the libraries that
do so work side by side); the results are taken in order and written a portion at a time. Who starts
again goes on behind the last portion.
"""

from __future__ import annotations

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
from qkvary.data.overlap import count_overlap
from qkvary.data.portions import Gathered, Workplace, begun_plan, finished_plan
from qkvary.data.prepared import PreparedData, open_prepared
from qkvary.data.sources import Source, Stream
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.durable import clean_leftovers, make_directory
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue, encode

FIRST_PORTION, LARGEST_PORTION = 2**23, 2**28
"""UTF-8 bytes of text: each portion is twice the one before, up to the largest."""
BLOCK_BYTES = 2**20
"""Text that a thread is given at once, at least."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where the preparation stands."""

    documents: int = 0
    """Documents that were turned into tokens, in all starts together."""
    tokens: int = 0
    """Their tokens."""
    text_bytes: int = 0
    """Their UTF-8 bytes."""
    total_bytes: int | None = None
    """Bytes of the source, where that is known."""
    resumed_bytes: int = 0
    """Those of ``text_bytes`` that an earlier start did."""


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How it is done; none of it but ``portions`` changes what comes out."""

    workers: int | None = None
    """Threads; by default one for each processor."""
    portions: tuple[int, int] = (FIRST_PORTION, LARGEST_PORTION)
    """UTF-8 bytes of the first portion, and of the largest."""
    block_bytes: int = BLOCK_BYTES
    """Text that a thread is given at once, at least."""
    report: Report = field(default=lambda _progress: None)
    """Told where it stands, now and then."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"expected at least one worker, got {self.workers}")


@dataclass(slots=True)
class _Block:
    """Documents that are encoded together."""

    documents: list[Document]
    position: JsonValue
    ends_portion: bool


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    tokenizer_name: str,
    settings: Settings | None = None,
) -> PreparedData:
    """Prepare a set at ``folder``, or go on with it; where it is complete, open it.

    Args:
        source: The documents.
        tokenizer: What turns them into tokens; needs a separator.
        folder: Where the set is to be.
        tokenizer_name: What people call the tokenizer.
        settings: How.

    Raises:
        UsageError: if the documents are none, or one is no text; if another set is at ``folder``.
        BusyError: if somebody else prepares there.
        ResourceError: if the disk is full, broken or not writable.
        DamagedError: if what was prepared before was changed.
        DownloadError: if the hub does not give a source of the hub.
    """
    chosen = settings or Settings()
    make_directory(folder)
    workplace = Workplace(folder)
    try:
        clean_leftovers(folder)
        source = pin_source(source, folder)
        description = (encode(tokenizer.describe()) + "\n").encode()
        plan = _plan(source, description, tokenizer_name, chosen)
        finished = finished_plan(folder)
        if finished is None:
            _check_same(begun_plan(folder), plan, folder)
            _run(workplace, source, tokenizer, description, plan, chosen)
        else:
            _check_same(finished, plan, folder)
        workplace.clear()
    finally:
        workplace.release()
    # Portions of earlier starts were compared when they were found; those of this one are sound.
    return open_prepared(folder, verify=finished is not None, tokenizer=tokenizer)


def pin_source(source: Source, folder: Path) -> Source:
    """The source as the set at ``folder`` was begun with it; where none was, as it is today.

    Raises:
        UsageError: if there is no such source any more.
        DamagedError: if what was prepared before was changed.
        DownloadError: if the hub does not say what the source is today.
    """
    if source.pin is None:
        return source
    finished = finished_plan(folder)
    commit = _commit_of(begun_plan(folder) if finished is None else finished)
    # A set that was complete before commits were noted is left as it is.
    return source if commit is None and finished is not None else source.pin(commit)


def _commit_of(plan: Any) -> str | None:
    files = None if plan is None else plan["source"]["files"]
    return cast("dict[str, Any]", files).get("commit") if isinstance(files, dict) else None


def _plan(
    source: Source, description: bytes, tokenizer_name: str, settings: Settings
) -> dict[str, JsonValue]:
    return {
        "source": source.describe(),
        "tokenizer": {
            "name": tokenizer_name,
            "sha256": hashlib.sha256(description).hexdigest(),
        },
        "portions": list(settings.portions),
    }


def _check_same(stored: Any, plan: Mapping[str, JsonValue], folder: Path) -> None:
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
    workplace: Workplace,
    source: Source,
    tokenizer: Tokenizer,
    description: bytes,
    plan: Mapping[str, JsonValue],
    settings: Settings,
) -> None:
    if begun_plan(workplace.folder) is None:
        workplace.begin(plan)
    workplace.load()
    encoder = Encoder(tokenizer)
    progress = Progress(total_bytes=source.total_bytes)
    for portion in workplace.portions:
        for tokens, documents, text_bytes in portion.shards.values():
            progress.tokens += tokens
            progress.documents += documents
            progress.text_bytes += text_bytes
    progress.resumed_bytes = progress.text_bytes
    settings.report(progress)
    for number, stream in enumerate(source.streams):
        _run_stream(workplace, source, stream, number, encoder, settings, progress)
    for split in ("train", "validation"):
        if not workplace.count(split, 1):
            raise UsageError(
                f"expected documents for {split} in {source.name}, got none; say which they are "
                "with `qkvary data prepare ... --validation PATH`, or hold out another share with "
                "its --held-out"
            )
    about: dict[str, JsonValue] = {
        "name": source.name,
        "plan": plan,
        "token_bytes": token_width(tokenizer.vocabulary),
        "tokenizer": {
            "name": plan["tokenizer"]["name"],  # type: ignore[index,call-overload]
            "vocabulary": tokenizer.vocabulary,
            "separator": tokenizer.separator,
        },
        "overlap": count_overlap(workplace),
    }
    workplace.finish(about, description)


def _run_stream(
    workplace: Workplace,
    source: Source,
    stream: Stream,
    number: int,
    encoder: Encoder,
    settings: Settings,
    progress: Progress,
) -> None:
    earlier = [portion for portion in workplace.portions if portion.stream == number]
    if earlier and earlier[-1].ended:
        return
    position = earlier[-1].position if earlier else None
    tokens = earlier[-1].stream_tokens if earlier else 0
    gathered = Gathered()
    blocks = _read_blocks(stream, position, workplace, settings)
    with closing(_encode_blocks(blocks, encoder, settings.workers)) as encoded:
        for block, documents in encoded:
            for document in documents:
                split = stream.split or source.split_of(document.digest)
                gathered.add(split, document)
                tokens += len(document.tokens) if split == (stream.split or "train") else 0
                _count(progress, document)
                if stream.max_tokens is not None and tokens >= stream.max_tokens:
                    break
            full = stream.max_tokens is not None and tokens >= stream.max_tokens
            settings.report(progress)
            if full or block.ends_portion:
                workplace.add(
                    gathered,
                    stream=number,
                    position=block.position,
                    ended=full,
                    stream_tokens=tokens,
                )
                gathered = Gathered()
            if full:
                return
    workplace.add(gathered, stream=number, position=None, ended=True, stream_tokens=tokens)


def _count(progress: Progress, document: EncodedDocument) -> None:
    progress.documents += 1
    progress.tokens += len(document.tokens)
    progress.text_bytes += document.text_bytes


def _read_blocks(
    stream: Stream, position: JsonValue, workplace: Workplace, settings: Settings
) -> Iterator[_Block]:
    """Documents in blocks; portions end where so much text was read since the last one."""
    first, largest = settings.portions
    number = len(workplace.portions)
    waiting: list[Document] = []
    block_size = portion_size = 0
    for document in stream.documents.read(position):
        waiting.append(document)
        # What a document has in UTF-8 is only known when it is encoded; characters do as well.
        block_size += len(document.text)
        portion_size += len(document.text)
        ends_portion = portion_size >= min(first << min(number, 40), largest)
        if ends_portion or block_size >= settings.block_bytes:
            place = stream.documents.position() if ends_portion else None
            yield _Block(waiting, place, ends_portion)
            waiting, block_size = [], 0
        if ends_portion:
            number, portion_size = number + 1, 0
    if waiting:
        yield _Block(waiting, None, ends_portion=False)


def _encode_blocks(
    blocks: Iterator[_Block], encoder: Encoder, workers: int | None
) -> Generator[tuple[_Block, list[EncodedDocument]]]:
    """The blocks in order, with their tokens; a few are encoded ahead."""
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
