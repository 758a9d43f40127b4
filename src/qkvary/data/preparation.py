"""Tokenizes a source of documents into a prepared set, in parallel and resumably.

Documents are read in order, in blocks. Threads encode the blocks, because the tokenizer libraries
release the GIL. The results are collected in order and written in groups of shards.

A group has one shard for each split that received documents. Its record contains the
position in the source and is written last. A group without a record is written again. Group
boundaries depend only on the source. An interrupted preparation therefore gives the same bytes as
an uninterrupted one.
"""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from qkvary.data.documents import Document
from qkvary.data.encoding import EncodedDocument, encode_documents, token_width
from qkvary.data.prepared import (
    BLOCKS_FILE,
    FORMAT,
    KIND,
    PLAN_FILE,
    SPLITS,
    TOKENIZER_FILE,
    PreparedData,
    changed_error,
    fingerprint_of,
    open_prepared,
    read_record,
    shard_files,
    stored_plan,
)
from qkvary.data.sources import Source, Stream
from qkvary.data.splits import HeldOut
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.durable import (
    OwnerLock,
    atomic_write_file,
    clean_leftovers,
    make_directory,
    remove_file,
)
from qkvary.storage.environment import usable_cores
from qkvary.storage.errors import UsageError
from qkvary.storage.journal import to_line
from qkvary.storage.jsonvalues import JsonValue, encode
from qkvary.storage.manifest import MANIFEST_NAME, FileEntry, Manifest

GROUP_BYTES = (2**23, 2**28)
"""Minimum characters of text in the first group of shards, and in the largest groups. The minimum
doubles from group to group until it reaches the second number."""
BLOCK_BYTES = 2**20
"""Minimum characters of text per block. The last block of a group or stream may have fewer."""
LOCK_FILE = "prepare.lock"
_OWN_FILES = re.compile(
    rf"{re.escape(LOCK_FILE)}|{re.escape(PLAN_FILE)}|portion-\d+\.json|\.tmp-.*"
    rf"|{re.escape(TOKENIZER_FILE)}|{re.escape(BLOCKS_FILE)}|{re.escape(MANIFEST_NAME)}"
    rf"|(?:{'|'.join(SPLITS)})-\d+(?:\.starts|\.digests)?\.bin"
)

OnProgress = Callable[[int, int, str], object]
"""Function that is called after each block.

Its arguments are the UTF-8 bytes so far, the total to read (0 if unknown), and a note.
"""


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    tokenizer_name: str,
    workers: int | None = None,
    on_progress: OnProgress = lambda _bytes, _total, _note: None,
) -> PreparedData:
    """Prepare the data set in ``folder``, resume its preparation, or open a complete set."""
    make_directory(folder)
    foreign = sorted(path.name for path in folder.iterdir() if not _OWN_FILES.fullmatch(path.name))
    if foreign:
        raise UsageError(
            f"expected an empty folder for the prepared set, got {folder} with {foreign[0]}"
        )
    lock = OwnerLock(folder / LOCK_FILE)
    try:
        clean_leftovers(folder)
        description = (encode(tokenizer.describe()) + "\n").encode()
        sha256 = hashlib.sha256(description).hexdigest()
        plan: dict[str, JsonValue] = {
            "source": source.describe(),
            "tokenizer": {"name": tokenizer_name, "sha256": sha256},
            "portions": list(GROUP_BYTES),
        }
        stored, is_complete = stored_plan(folder), (folder / MANIFEST_NAME).is_file()
        for name, wanted in plan.items():
            if stored is not None and stored.get(name) != wanted:
                raise UsageError(
                    f"{folder} holds a set with another {name}: remove the folder, or prepare the "
                    "set elsewhere with `qkvary data prepare ... --out DIR`"
                )
        if not is_complete:
            if stored is None:
                # The plan is written before any other file.
                atomic_write_file(folder / PLAN_FILE, to_line(plan))
            _Preparation(folder, source, tokenizer, workers, on_progress).run(plan, description)
        for path in sorted(folder.glob("portion-*.json")):
            remove_file(path)
        remove_file(folder / PLAN_FILE)
    finally:
        lock.release()
    # Groups of earlier starts were verified when they were loaded; those of this start are intact.
    return open_prepared(folder, verify=is_complete, tokenizer=tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The record of one group, from which a preparation can resume after the group."""

    stream: int
    position: JsonValue
    """The position in the stream after the last document of the group."""
    ended: bool
    stream_tokens: int
    """Training tokens of the stream up to the end of this group."""
    shards: Mapping[str, Sequence[int]]
    """Tokens, documents and UTF-8 bytes of each split that has documents in this group."""
    files: Mapping[str, Sequence[Any]]
    """Size and sha256 of each file."""


class _Block(NamedTuple):
    documents: list[Document]
    ends_group: bool
    position: JsonValue = None
    """The position after the block if it ends a group, otherwise None."""


class _Preparation:
    """The state of one preparation. This process has locked the folder."""

    def __init__(
        self,
        folder: Path,
        source: Source,
        tokenizer: Tokenizer,
        workers: int | None,
        on_progress: OnProgress,
    ) -> None:
        self._folder, self._source, self._tokenizer = folder, source, tokenizer
        self._workers, self._on_progress = workers or usable_cores(), on_progress
        self._groups: list[_Group] = []
        self._load()
        self._tokens, self._documents, self._bytes = (
            sum(self._count(split, what) for split in SPLITS) for what in range(3)
        )

    def run(self, plan: Mapping[str, JsonValue], description: bytes) -> None:
        """Write the missing groups, and then the manifest, which marks the set as complete."""
        self._report()
        for number, stream in enumerate(self._source.streams):
            self._run_stream(number, stream)
        for split in ("train", "validation"):
            if not self._count(split, 1):
                raise UsageError(
                    f"expected documents for {split} in {self._source.name}, got none (documents "
                    f"in all: {self._documents:,}); give a longer text, name documents with "
                    "`qkvary data prepare ... --validation PATH`, or change the share with "
                    "--held-out"
                )
        files = {
            name: FileEntry(size=size, sha256=sha256)
            for group in self._groups
            for name, (size, sha256) in group.files.items()
        }
        atomic_write_file(self._folder / TOKENIZER_FILE, description)
        files[TOKENIZER_FILE] = FileEntry.of(description)
        about: dict[str, JsonValue] = {
            "name": self._source.name,
            "plan": plan,
            "token_bytes": token_width(self._tokenizer.vocabulary),
            "tokenizer": {
                "name": cast("Mapping[str, JsonValue]", plan["tokenizer"])["name"],
                "vocabulary": self._tokenizer.vocabulary,
                "separator": self._tokenizer.separator,
            },
            "overlap": self._count_overlap(),
            "kind": KIND,
            **FORMAT.version_field,
            "splits": {
                split: {
                    "tokens": self._count(split, 0),
                    "documents": self._count(split, 1),
                    "text_bytes": self._count(split, 2),
                    "shards": [list(one.shards[split][:2]) for one in self._groups_of(split)],
                }
                for split in SPLITS
                if self._groups_of(split)
            },
        }
        manifest = Manifest(files=files, about=about)
        about["fingerprint"] = fingerprint_of(manifest, about)
        atomic_write_file(self._folder / MANIFEST_NAME, manifest.to_json())

    def _report(self) -> None:
        note = f"{self._documents:,} documents, {self._tokens:,} tokens"
        self._on_progress(self._bytes, self._source.total_bytes or 0, note)

    def _load(self) -> None:
        """Load the records of existing groups, and check their files."""
        while (path := self._record()).is_file():
            fields = read_record(path)
            # Older versions stored digests of blocks as well.
            fields.pop("blocks", None)
            self._groups.append(_Group(**fields))
            for name, (size, sha256) in self._groups[-1].files.items():
                file, entry = self._folder / name, FileEntry(size=size, sha256=sha256)
                if not file.is_file() or FileEntry.of(file.read_bytes()) != entry:
                    raise changed_error(file)

    def _record(self) -> Path:
        """Return the path of the record of the next group."""
        return self._folder / f"portion-{len(self._groups):05d}.json"

    def _groups_of(self, split: str) -> list[_Group]:
        return [one for one in self._groups if split in one.shards]

    def _count(self, split: str, what: int) -> int:
        """Return the tokens (``what`` is 0), documents (1) or bytes (2) of a split so far."""
        return sum(one.shards[split][what] for one in self._groups_of(split))

    def _run_stream(self, number: int, stream: Stream) -> None:
        last = next((one for one in reversed(self._groups) if one.stream == number), None)
        if last is not None and last.ended:
            return
        tokens = 0 if last is None else last.stream_tokens
        pending: dict[str, list[EncodedDocument]] = {}
        blocks = self._read_blocks(stream, None if last is None else last.position)
        with closing(self._encode_blocks(blocks)) as encoded:
            for block, documents in encoded:
                for document in documents:
                    # A stream without a split has a rule.
                    rule = cast("HeldOut", self._source.rule)
                    split = stream.split or rule.split_of(document.digest)
                    pending.setdefault(split, []).append(document)
                    tokens += len(document.tokens) if split == (stream.split or "train") else 0
                    self._documents += 1
                    self._tokens += len(document.tokens)
                    self._bytes += document.text_bytes
                    if stream.max_tokens is not None and tokens >= stream.max_tokens:
                        break
                full = stream.max_tokens is not None and tokens >= stream.max_tokens
                self._report()
                if full or block.ends_group:
                    self._add(pending, number, block.position, tokens, ended=full)
                    pending = {}
                if full:
                    return
        self._add(pending, number, None, tokens, ended=True)

    def _read_blocks(self, stream: Stream, position: JsonValue) -> Iterator[_Block]:
        """Yield blocks of documents. A block that completes a group is marked."""
        first, largest = GROUP_BYTES
        number, waiting = len(self._groups), list[Document]()
        block_size = group_size = 0
        for document in stream.documents.read(position):
            waiting.append(document)
            # Characters, because UTF-8 bytes are only known after encoding.
            block_size += len(document.text)
            group_size += len(document.text)
            ends_group = group_size >= min(first << min(number, 40), largest)
            if ends_group or block_size >= BLOCK_BYTES:
                place = stream.documents.position() if ends_group else None
                yield _Block(waiting, ends_group, place)
                waiting, block_size = [], 0
            if ends_group:
                number, group_size = number + 1, 0
        if waiting:
            yield _Block(waiting, ends_group=False)

    def _encode_blocks(
        self, blocks: Iterator[_Block]
    ) -> Generator[tuple[_Block, list[EncodedDocument]]]:
        """Yield the blocks with their tokens, in order. A few blocks are encoded in advance."""
        if self._workers == 1:
            for block in blocks:
                yield block, encode_documents(self._tokenizer, block.documents)
            return
        waiting: deque[tuple[_Block, Future[list[EncodedDocument]]]] = deque()
        threads = ThreadPoolExecutor(self._workers, thread_name_prefix="encode")
        try:
            for block in blocks:
                future = threads.submit(encode_documents, self._tokenizer, block.documents)
                waiting.append((block, future))
                if len(waiting) > 2 * self._workers:
                    done, future = waiting.popleft()
                    yield done, future.result()
            for done, future in waiting:
                yield done, future.result()
        finally:
            threads.shutdown(wait=True, cancel_futures=True)

    def _add(
        self,
        pending: Mapping[str, Sequence[EncodedDocument]],
        stream: int,
        position: JsonValue,
        tokens: int,
        *,
        ended: bool,
    ) -> None:
        """Write one group: its shards, then its record."""
        files: dict[str, Sequence[Any]] = {}
        shards: dict[str, Sequence[int]] = {}
        for split, documents in pending.items():
            contents, shards[split] = _pack(documents, self._count(split, 0))
            names = shard_files(split, len(self._groups_of(split)))
            for name, data in zip(names, contents, strict=True):
                atomic_write_file(self._folder / name, data)
                files[name] = (len(data), hashlib.sha256(data).hexdigest())
        group = _Group(
            stream=stream,
            position=position,
            ended=ended,
            stream_tokens=tokens,
            shards=shards,
            files=files,
        )
        atomic_write_file(self._record(), to_line(asdict(group)))
        self._groups.append(group)

    def _count_overlap(self) -> dict[str, JsonValue]:
        """Count the documents that two splits share, and the repeated documents of each split.

        Documents are equal if their stripped texts agree in the first 64 bits of the sha256.
        """
        digests: dict[str, NDArray[np.uint64]] = {}
        for split in filter(self._groups_of, SPLITS):
            names = (shard_files(split, number)[2] for number in range(len(self._groups_of(split))))
            parts = [np.fromfile(self._folder / name, dtype="<u8") for name in names]
            digests[split] = np.concatenate(parts)
        shared: dict[str, JsonValue] = {}
        for first, second in combinations(digests, 2):
            found = np.isin(digests[second], digests[first])
            shared[f"{second} in {first}"] = int(found.sum())
        repeated: dict[str, JsonValue] = {
            name: int(found.size - np.unique(found).size) for name, found in digests.items()
        }
        return {"shared_documents": shared, "repeated_documents": repeated}


def _pack(
    documents: Sequence[EncodedDocument], start: int
) -> tuple[tuple[bytes, bytes, bytes], tuple[int, int, int]]:
    """Return the three files and the counts of a shard that begins at token ``start``."""
    lengths = np.array([len(document.tokens) for document in documents], dtype=np.int64)
    starts = start + np.cumsum(lengths) - lengths
    digests = np.array([document.digest for document in documents], dtype="<u8")
    tokens = np.concatenate([document.tokens for document in documents])
    contents = (tokens.tobytes(), starts.astype("<i8").tobytes(), digests.tobytes())
    text_bytes = sum(document.text_bytes for document in documents)
    return contents, (len(tokens), len(documents), text_bytes)
