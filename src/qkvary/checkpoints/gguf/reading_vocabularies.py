"""Reads vocabularies of llama.cpp as our tokenizers, and refuses those without an exact match."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from qkvary.checkpoints.gguf.headers import Metadata
from qkvary.checkpoints.gguf.splitting import SPLITTINGS, WHOLE_WORDS
from qkvary.checkpoints.gguf.vocabularies import NO_MERGES, TokenType
from qkvary.checkpoints.sentencepiece import PIECE_NAMES, SPACE
from qkvary.data.byte_pairs import BytePairTokenizer, byte_letters
from qkvary.data.library_tokenizers import LibraryTokenizer
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer, PieceTokenizer, Tokenizer
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import explain

_KEY = "tokenizer.ggml."
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")
_PIECE_VALUES: Mapping[str, object] = {
    "add_eos_token": False,
    "unknown_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""The value that each setting of a sentencepiece tokenizer must have. It is also the default of a
setting that a file omits."""
_PIECE_FLAGS: Mapping[str, bool] = {
    "add_space_prefix": True,
    "add_bos_token": True,
    "remove_extra_whitespaces": False,
}
_PIECE_TYPES = (TokenType.NORMAL, TokenType.BYTE, TokenType.UNUSED)


class _Vocabulary:
    """The lists of a vocabulary, checked and without the unused tokens at the end."""

    def __init__(self, metadata: Metadata, where: str) -> None:
        self.metadata, self.where = metadata, where
        tokens = self.list("tokens", str | bytes)
        types = self.list("token_type", int) if f"{_KEY}token_type" in metadata else []
        if len(types) not in (0, len(tokens)):
            raise DamagedError(f"{where} has {len(tokens)} tokens and {len(types)} types")
        size = len(tokens)
        while types and size and types[size - 1] == TokenType.UNUSED:
            size -= 1
        self.tokens = [one.encode() if isinstance(one, str) else one for one in tokens[:size]]
        self.types: list[int] = types[:size] or [int(TokenType.NORMAL)] * size

    def list(self, name: str, kind: Any) -> list[Any]:
        """Return one of the lists of the vocabulary; all of its entries must be of ``kind``."""
        found = self.metadata.get(_KEY + name)
        if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
            raise DamagedError(f"{self.where} has no list {_KEY}{name}")
        return cast("list[Any]", found)

    @property
    def has_separator(self) -> bool:
        """Whether the last token is a separator, the only control token of the vocabulary."""
        marked = [token for token, kind in enumerate(self.types) if kind == TokenType.CONTROL]
        return marked == [len(self.tokens) - 1]

    def plain(self) -> list[bytes]:
        return self.tokens[:-1] if self.has_separator else self.tokens


def read_tokenizer(metadata: Metadata, where: str) -> Tokenizer | None:
    """Return the tokenizer of a file, or None if the file has no tokenizer."""
    model = metadata.get(f"{_KEY}model", "none")
    if model in ("none", "no_vocab"):
        return None
    read = _READERS.get(model) if isinstance(model, str) else None
    if read is None:
        raise UsageError(
            f"{where} has a tokenizer of the kind {str(model)[:40]!r}; choices: "
            f"{', '.join(_READERS)}"
        )
    with explain(where, "has an invalid tokenizer"):
        return read(_Vocabulary(metadata, where))


def _read_matches(vocabulary: _Vocabulary) -> Tokenizer:
    plain = vocabulary.plain()
    texts = [_ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), token) for token in plain]
    if texts == [bytes((byte,)) for byte in range(256)]:
        return ByteTokenizer(has_separator=vocabulary.has_separator)
    return _make_alphabet(texts, vocabulary)


def _make_alphabet(texts: list[bytes], vocabulary: _Vocabulary) -> Tokenizer:
    letters = [text.decode("utf-8", "replace") for text in texts]
    if any(len(letter) != 1 for letter in letters):
        raise UsageError(
            f"{vocabulary.where} has tokens of several characters but no merges, so texts would "
            "have to be split by matching whole tokens, which is not supported; choices: a "
            "tokenizer of bytes, characters, merged pairs or merged pieces"
        )
    return CharacterTokenizer("".join(letters), has_separator=vocabulary.has_separator)


def _read_pairs(vocabulary: _Vocabulary) -> Tokenizer:
    letters = byte_letters()
    names = [token.decode("utf-8", "replace") for token in vocabulary.plain()]
    merges, pre = vocabulary.list("merges", str), vocabulary.metadata.get(f"{_KEY}pre")
    merges = [] if merges == NO_MERGES else merges
    if names[:256] == list(letters):
        made = [merge.replace(" ", "", 1) for merge in merges]
        if pre == "gpt-2" and vocabulary.has_separator and names[256:] == made:
            return BytePairTokenizer("\n".join(merges))
    elif vocabulary.has_separator and all(name and set(name) <= set(letters) for name in names):
        texts = [bytes(letters[letter] for letter in name) for name in names]
        if all(len(text.decode("utf-8", "replace")) == 1 for text in texts):
            return _make_alphabet(texts, vocabulary)
    return _make_library(vocabulary, merges, pre)


def _make_library(vocabulary: _Vocabulary, merges: list[str], pre: object) -> Tokenizer:
    splitting = SPLITTINGS.get(pre) if isinstance(pre, str) else None
    end = vocabulary.metadata.get(f"{_KEY}eos_token_id")
    if splitting is None:
        raise UsageError(
            f"{vocabulary.where} has the unknown pre-tokenizer {str(pre)[:40]!r}; "
            f"choices: {', '.join(SPLITTINGS)}"
        )
    names = [token.decode("utf-8", "replace") for token in vocabulary.tokens]
    if not isinstance(end, int) or not 0 <= end < len(names):
        raise UsageError(f"{vocabulary.where} has no end-of-document token")
    special = {
        token
        for token, kind in enumerate(vocabulary.types)
        if kind not in (TokenType.NORMAL, TokenType.UNUSED)
    }
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": token, "content": names[token], **flags, "special": True}
            for token in sorted(special)
        ],
        "normalizer": None,
        "pre_tokenizer": splitting,
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "ignore_merges": pre in WHOLE_WORDS,
            # The library gives special tokens other ids if they are not listed here.
            "vocab": {name: token for token, name in enumerate(names)},
            "merges": merges,
        },
    }
    return LibraryTokenizer(json.dumps(content), separator=names[end])


def _read_pieces(vocabulary: _Vocabulary) -> Tokenizer:
    where, metadata = vocabulary.where, vocabulary.metadata
    if tuple(vocabulary.tokens[:3]) != PIECE_NAMES:
        raise UsageError(
            f"{where} does not begin with the pieces "
            f"{', '.join(name.decode() for name in PIECE_NAMES)}"
        )
    for name, expected in _PIECE_VALUES.items():
        found = metadata.get(_KEY + name, expected)
        if found != expected:
            raise UsageError(f"{where} has {_KEY}{name} {found!r:.40}, expected {expected}")
    first = len(PIECE_NAMES)
    # No merge makes tokens of other types: llama.cpp finds them in a text before it merges.
    for token, kind in enumerate(vocabulary.types[first:], start=first):
        if kind not in _PIECE_TYPES:
            types = ", ".join(f"{one} ({one.name})" for one in _PIECE_TYPES)
            raise UsageError(f"{where} has the piece {token} of type {kind}, expected {types}")
    flags = {name: metadata.get(_KEY + name, usual) for name, usual in _PIECE_FLAGS.items()}
    for name, found in flags.items():
        if not isinstance(found, bool):
            raise DamagedError(f"{where} has {_KEY}{name} {found!r:.40}, expected true or false")
    pieces = [
        b"" if kind == TokenType.UNUSED else token.replace(SPACE, b" ")
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    scores = [float(score) for score in vocabulary.list("scores", int | float)]
    return PieceTokenizer(
        pieces,
        scores[: len(pieces)],
        joins_spaces=flags["remove_extra_whitespaces"],
        adds_space=flags["add_space_prefix"],
        adds_beginning=flags["add_bos_token"],
    )


_READERS: Mapping[str, Callable[[_Vocabulary], Tokenizer]] = {
    "rwkv": _read_matches,
    "gpt2": _read_pairs,
    "llama": _read_pieces,
}
