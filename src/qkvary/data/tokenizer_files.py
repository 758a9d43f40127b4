"""Loads tokenizers: ``gpt2``, ``bytes``, ``characters``, or the tokenizer in a file or folder.

GPT-2's list of merges comes from ``QKVARY_DATA``, the cache or the web, and must have the published
sha256.
"""

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.documents import Document
from qkvary.data.files import load_published
from qkvary.data.library_tokenizers import LibraryTokenizer
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer, make_tokenizer
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import (
    MAX_SIDE_FILE_BYTES,
    parse_json,
    read_file,
    read_path,
    short_reason,
)

NAMES = ("gpt2", "bytes", "characters")
LONGEST_NAME = 80
_SHORTENED = re.compile(r"gpt2-([0-9]{1,6})")
"""Matches ``gpt2-4096``: GPT-2's tokenizer reduced to the first 4,096 tokens."""
GPT2_TOKENS = 50_257
MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
MERGES_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
_MERGES = ("merges.txt", "vocab.bpe")
_NUMBERS = ("vocab.json", "encoder.json")


def load_tokenizer(
    reference: str, *, documents: Iterable[Document] = (), separator: str = ""
) -> Tokenizer:
    """Load a tokenizer by its name or from its files.

    The name is one of ``NAMES``, or ``gpt2-4096`` for GPT-2's tokenizer cut to 4,096 tokens. The
    files are a ``tokenizer.json``, or a list of merges, or a folder with one of these.
    ``separator`` is the token after every document, if the files do not name it; ``documents``
    define the alphabet of ``characters``.
    """
    shortened = _SHORTENED.fullmatch(reference)
    if separator and (shortened or reference in NAMES):
        raise UsageError(f"{reference} already defines a separator: omit --separator")
    if reference == "gpt2":
        return load_gpt2()
    if shortened:
        return load_gpt2().shortened(int(shortened[1]))
    if reference == "bytes":
        return ByteTokenizer(has_separator=True)
    if reference == "characters":
        letters: set[str] = set()
        for document in documents:
            letters.update(document.text)
        if not letters:
            raise UsageError("expected a text that defines an alphabet, got none")
        return CharacterTokenizer("".join(sorted(letters)), has_separator=True)
    path = read_path(reference, "a tokenizer")
    if not path.exists():
        raise UsageError(
            f"expected a tokenizer, got {reference!r}; choices: {', '.join(NAMES)}, gpt2-4096, or "
            "the path of a tokenizer.json or of a folder with one"
        )
    try:
        return _load_path(path, separator)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def count_tokens(reference: str, *, documents: Iterable[Document] = ()) -> int:
    """Return the size of a tokenizer's vocabulary, without downloading GPT-2's files."""
    shortened = _SHORTENED.fullmatch(reference)
    if reference == "gpt2" or shortened:
        return min(int(shortened[1]), GPT2_TOKENS) if shortened else GPT2_TOKENS
    return load_tokenizer(reference, documents=documents).vocabulary


def name_tokenizer(reference: str) -> str:
    """Return the name of a tokenizer for folder names."""
    if reference in NAMES or _SHORTENED.fullmatch(reference):
        return reference
    path = read_path(reference, "a tokenizer").resolve()
    own = path.name if path.is_dir() else path.stem
    name = path.parent.name if own == "tokenizer" else own
    return plain_name(name)


def plain_name(text: str) -> str:
    """Return a name that is safe in a path: letters and digits of any script, dots and dashes."""
    # An accented letter is one character or two, and some scripts write vowels as marks.
    letters = unicodedata.normalize("NFC", text)
    kept = (one if one == "." or unicodedata.category(one)[0] in "LMN" else "-" for one in letters)
    name = re.sub("-+", "-", "".join(kept)).strip("-.")[:LONGEST_NAME]
    # The limit of file systems is in bytes.
    name = name.encode()[: 2 * LONGEST_NAME].decode(errors="ignore")
    if not name:
        raise UsageError(f"expected a name with letters or digits, got {text!r}: rename it")
    return name


def load_gpt2() -> BytePairTokenizer:
    """Load GPT-2's tokenizer."""
    data, _ = load_published(
        "gpt2_bpe",
        _MERGES,
        MERGES_URL,
        MERGES_SHA256,
        name="GPT-2's list of merges",
        put="put its vocab.bpe (or merges.txt) into the folder gpt2_bpe of QKVARY_DATA; "
        "`--tokenizer bytes` needs no file",
        limit=1_000_000,
    )
    return BytePairTokenizer(data.decode())


def _load_path(path: Path, separator: str) -> Tokenizer:
    if not path.is_dir():
        return _load_file(path, separator)
    if (path / "tokenizer.json").is_file():
        return _load_file(path / "tokenizer.json", separator or _end_of(path))
    merges, numbers = (
        next((path / name for name in names if (path / name).is_file()), None)
        for names in (_MERGES, _NUMBERS)
    )
    if merges is None:
        raise UsageError(
            f"expected a tokenizer.json, or a {' or '.join(_MERGES)}, in {path}, got neither"
        )
    tokenizer = BytePairTokenizer(_text(merges))
    if numbers is not None and _json(numbers) != tokenizer.numbers():
        raise UsageError(
            f"{numbers} does not number the merges in {merges.name} as GPT-2 does: give the "
            "tokenizer.json of this tokenizer instead"
        )
    return tokenizer


def _load_file(path: Path, separator: str) -> Tokenizer:
    if path.name in _MERGES:
        return BytePairTokenizer(_text(path))
    fields = _json(path)
    # The file of a prepared set or of our checkpoints has the same name.
    if isinstance(fields, dict) and "kind" in fields:
        return make_tokenizer(cast("dict[str, Any]", fields))
    return LibraryTokenizer(_text(path), separator=separator)


def _end_of(folder: Path) -> str:
    """Return the end-of-text token that the folder's configuration names."""
    path = folder / "tokenizer_config.json"
    fields = _json(path) if path.is_file() else {}
    named = cast("dict[str, Any]", fields).get("eos_token") if isinstance(fields, dict) else None
    if isinstance(named, dict):
        named = cast("dict[str, Any]", named).get("content")
    return named if isinstance(named, str) else ""


def _text(path: Path) -> str:
    try:
        return read_file(path, limit=MAX_SIDE_FILE_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"expected UTF-8 in {path}, got other bytes") from None


def _json(path: Path) -> Any:
    text = _text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise UsageError(
            f"expected JSON in {path}, got something else: {short_reason(error)}"
        ) from None
