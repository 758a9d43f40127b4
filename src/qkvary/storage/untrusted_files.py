"""Reads untrusted files with limits on size and nesting, and never unpickles. Torch-free.

JSON is parsed here. For the parsers of other formats this file defines the limits: parsers written
in Python check the number of entries; native parsers run in processes (``parser_processes``).
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkvary.storage.environment import require_memory
from qkvary.storage.errors import DamagedError, UnsafeError, UsageError

StrPath = str | os.PathLike[str]
"""A path, or a name if a function also accepts names."""
MAX_WEIGHT_BYTES = 2**40
MAX_SIDE_FILE_BYTES = 2**26
"""Maximum size of a configuration or tokenizer, in bytes."""
MAX_JSON_DEPTH = 100
"""Maximum nesting of lists and objects in a JSON document."""
MAX_ENTRIES = 2**21
"""Maximum number of entries (fields, pieces or texts) in a file. Python reads them one by one, so a
larger number would take too long."""
LARGEST_RATIO = 200
"""Maximum ratio of uncompressed to compressed bytes, beyond the first ``FREE_BYTES``."""
FREE_BYTES = 2**26
"""Any compressed file may expand to this number of bytes, regardless of the ratio."""
LARGEST_SIZE = 2**24
"""Maximum size (width, layers, vocabulary) in the header of a llama2.c file."""
MAX_REASON = 300
"""Maximum number of characters shown of a parser's message."""
_JSON_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = re.compile(r"[^][{}]+")
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLED = {".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".distcp", ".t7"}
_PICKLED_NAMES = ("pytorch_model.bin", "consolidated.pth", ".metadata")
_LOOK_BYTES = 4096


def read_name(given: object, expected: str) -> str:
    """Return a name or path as text."""
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(name, str):
        found = " ".join(repr(given).split())
        raise UsageError(f"expected {expected}, got {found}"[:200])
    return name


def read_path(given: object, expected: str = "a path") -> Path:
    """Return a path, with ``~`` replaced by the home folder."""
    path = Path(read_name(given, expected))
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UsageError(f"expected {expected}, got {path}: {error}") from None


def read_file(path: Path, *, limit: int = MAX_WEIGHT_BYTES) -> bytes:
    """Return the bytes of a file."""
    try:
        size = check_regular_file(path)
        if size > limit:
            raise DamagedError(f"expected at most {limit:,} bytes in {path}, got {size:,}")
        if size > MAX_SIDE_FILE_BYTES:
            require_memory(size, f"reading {path} takes", "use a machine with more memory")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if data.startswith(_PICKLES) or _has_pickle_name(path):
        raise _pickle_error(path)
    return data


def parse_json(
    data: str | bytes,
    *,
    object_pairs_hook: Callable[[list[tuple[str, object]]], object] | None = None,
    parse_constant: Callable[[str], object] | None = None,
) -> Any:
    """Return the value of a JSON document, as ``json.loads`` does, with a limit on its depth."""
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data))
    deep = f"expected at most {MAX_JSON_DEPTH} levels of JSON, got more"
    if _is_deep(text):
        raise ValueError(deep)
    try:
        return json.loads(text, object_pairs_hook=object_pairs_hook, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError(deep) from None


def _is_deep(text: str) -> bool:
    """Return whether lists and objects are nested too deep. Invalid JSON may pass unnoticed."""
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return False
    brackets = _NO_BRACKETS.sub("", _JSON_TEXT.sub("", text))
    # Each round removes the innermost level.
    for _ in range(MAX_JSON_DEPTH):
        shorter = brackets.replace("[]", "").replace("{}", "")
        if len(shorter) in (0, len(brackets)):
            return False
        brackets = shorter
    return True


def short_reason(error: BaseException) -> str:
    """Return the message of a parser's error in one line of limited length."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 3] + "..."


@contextmanager
def explain(where: str, what: str = "does not describe a network") -> Generator[None]:
    """Turn the ``ValueError`` of an invalid value into a ``DamagedError`` that names the file."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise DamagedError(f"{where} {what}: {short_reason(error)}") from None


def check_regular_file(path: Path) -> int:
    """Return the size of a regular file; reading a pipe or a device might never end."""
    try:
        found = path.stat()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"expected a regular file, got {path}")
    return found.st_size


def only_file(folder: Path, found: Sequence[Path]) -> Path:
    """Return the one file that was found in a folder."""
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:5])
        raise UsageError(
            f"expected one {found[0].suffix} file in {folder}, got {len(found)} ({names}); name one"
        )
    return found[0]


def read_start(path: Path, size: int) -> bytes:
    """Return the first ``size`` bytes of a file, or all bytes if the file is shorter."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def refuse_pickles(path: Path) -> None:
    """Refuse a pickle, or a folder that contains a pickle, recognized by name and first bytes.

    Call this if no reader recognizes a file: the error is more specific than a list of formats.
    """
    candidates = sorted(path.iterdir()) if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file() and _seems_pickled(candidate):
            raise _pickle_error(candidate)


def _seems_pickled(path: Path) -> bool:
    if _has_pickle_name(path):
        return True
    with path.open("rb") as file:
        start = file.read(_LOOK_BYTES)
    # Protocol 0 is text: a global, a call, and a full stop at the end.
    is_text_pickle = start[:1] in {b"c", b"("} and b"\n" in start and b"R" in start
    return start.startswith(_PICKLES) or (is_text_pickle and b"." in start[-1:])


def _has_pickle_name(path: Path) -> bool:
    return path.suffix.lower() in _PICKLED or path.name.startswith(_PICKLED_NAMES)


def _pickle_error(path: Path) -> UnsafeError:
    return UnsafeError(
        f"{path} is a pickle, which can execute code: convert it to safetensors in an isolated "
        "environment"
    )
