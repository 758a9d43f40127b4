"""Writes our tokenizers as llama.cpp vocabularies, so that llama.cpp encodes texts identically.

``rwkv`` matches bytes. ``gpt2`` merges pairs of symbols, where each letter stands for a byte.
``llama`` merges pieces by their scores. Tokenizers without a counterpart in llama.cpp are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, cast

from qkvary.checkpoints.gguf.splitting import find_splitting
from qkvary.checkpoints.sentencepiece import PIECE_NAMES, SPACE
from qkvary.data.byte_pairs import SEPARATOR, BytePairTokenizer, byte_letters
from qkvary.data.library_tokenizers import LibraryTokenizer
from qkvary.data.tokenizers import (
    CONTROL_TOKENS,
    DOCUMENT_END,
    ByteTokenizer,
    CharacterTokenizer,
    PieceTokenizer,
    Tokenizer,
)
from qkvary.storage.errors import UsageError

NO_MERGES = ["ÿ ÿ"]
"""The list of merges of a vocabulary without merges. It must not be empty, so it has one merge that
never applies."""


class TokenType(IntEnum):
    """The type of a token in llama.cpp."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary(NamedTuple):
    """A vocabulary for llama.cpp."""

    metadata: dict[str, Any]
    notes: tuple[str, ...]
    """Differences from our tokenizer, one sentence each."""


def convert_tokenizer(tokenizer: Tokenizer | None, size: int) -> Vocabulary:
    """Return the vocabulary of a tokenizer. Without one, llama.cpp reads and prints numbers."""
    if tokenizer is None:
        note = "the network has no tokenizer, so llama.cpp reads and prints token numbers"
        return Vocabulary({"tokenizer.ggml.model": "none"}, (note,))
    found = next(make for kind, make in _KINDS.items() if isinstance(tokenizer, kind))(tokenizer)
    metadata = {f"tokenizer.ggml.{key}": value for key, value in found.metadata.items()}
    missing = range(len(found.metadata["tokens"]), size)
    metadata["tokenizer.ggml.tokens"] += [f"[unused {token}]".encode() for token in missing]
    metadata["tokenizer.ggml.token_type"] += [int(TokenType.UNUSED)] * len(missing)
    if "tokenizer.ggml.scores" in metadata:
        metadata["tokenizer.ggml.scores"] += [0.0] * len(missing)
    return Vocabulary(metadata, found.notes)


def _make(
    model: str,
    tokens: Sequence[bytes],
    types: Mapping[int, TokenType],
    end: int | None,
    notes: Sequence[str] = (),
    *,
    adds_beginning: bool = False,
    **more: Any,
) -> Vocabulary:
    """Return a vocabulary; ``types`` lists only the tokens whose type is not normal."""
    metadata = {
        "model": model,
        **more,
        "tokens": list(tokens),
        "token_type": [int(types.get(token, TokenType.NORMAL)) for token in range(len(tokens))],
        "add_bos_token": adds_beginning,
    }
    if end is not None:
        metadata["eos_token_id"] = end
        metadata.setdefault("bos_token_id", end)
    return Vocabulary(metadata, tuple(notes))


def _end_of(tokenizer: Tokenizer) -> tuple[list[bytes], dict[int, TokenType], list[str]]:
    """Return the end-of-document token, its type and a note.

    All three are empty if the tokenizer has no such token.
    """
    if tokenizer.separator is None:
        return [], {}, []
    note = (
        f"llama.cpp recognises special tokens inside a text ({DOCUMENT_END}); qkvary reads them as "
        "plain text"
    )
    return [DOCUMENT_END.encode()], {tokenizer.separator: TokenType.CONTROL}, [note]


def _convert_bytes(tokenizer: ByteTokenizer) -> Vocabulary:
    ends, types, notes = _end_of(tokenizer)
    tokens = [_escape(bytes((byte,))) for byte in range(256)]
    return _make("rwkv", [*tokens, *ends], types, tokenizer.separator, notes)


def _escape(text: bytes) -> bytes:
    """Write the backslash, and each byte that is not printable ASCII, in hexadecimal."""
    return b"".join(
        bytes((byte,)) if 32 <= byte < 127 and byte != 92 else b"\\x%02x" % byte for byte in text
    )


def _convert_characters(tokenizer: CharacterTokenizer) -> Vocabulary:
    ends, types, notes = _end_of(tokenizer)
    if ends:
        # Merges of the bytes of each character.
        letters = {byte: letter for letter, byte in byte_letters().items()}
        names = ["".join(letters[byte] for byte in one.encode()) for one in tokenizer.alphabet]
        merges = dict.fromkeys(
            f"{name[:place]} {name[place]}" for name in names for place in range(1, len(name))
        )
        return _make(
            "gpt2",
            [*(name.encode() for name in names), *ends],
            types,
            tokenizer.separator,
            [*notes, "llama.cpp skips characters outside the alphabet; qkvary refuses them"],
            pre="gpt-2",
            merges=list(merges) or NO_MERGES,
        )
    if not tokenizer.alphabet.isascii():
        raise UsageError(
            "expected an ASCII alphabet or an end-of-document token, because llama.cpp would "
            "otherwise loop forever on some characters outside the alphabet, got neither; train "
            "with --tokenizer characters or bytes"
        )
    tokens = [_escape(letter.encode()) for letter in tokenizer.alphabet]
    note = "llama.cpp encodes characters outside the alphabet as token -1, which it then refuses"
    return _make("rwkv", tokens, types, None, [note])


def _convert_byte_pairs(tokenizer: BytePairTokenizer) -> Vocabulary:
    ends, types, notes = _end_of(tokenizer)
    names = sorted(tokenizer.numbers().items(), key=lambda item: item[1])
    tokens = [name.encode() for name, _ in names if name != SEPARATOR]
    merges = [line.rstrip("\r") for line in tokenizer.describe()["merges"].split("\n") if line]
    return _make(
        "gpt2",
        [*tokens, *ends],
        types,
        tokenizer.separator,
        notes,
        pre="gpt-2",
        merges=merges or NO_MERGES,
    )


def _convert_pieces(tokenizer: PieceTokenizer) -> Vocabulary:
    seen = set[bytes](PIECE_NAMES)
    tokens = list[bytes](PIECE_NAMES)
    types = {0: TokenType.UNKNOWN, 1: TokenType.CONTROL, 2: TokenType.CONTROL}
    for token, piece in enumerate(tokenizer.pieces[CONTROL_TOKENS:], start=CONTROL_TOKENS):
        name = piece.replace(b" ", SPACE)
        if len(tokenizer.piece(token)) == 1 and len(piece) == 6:
            types[token] = TokenType.BYTE
        if name in seen or not name:
            # If pieces are equal, only the first is used.
            name, types[token] = b"[unused %d]" % token, TokenType.UNUSED
        seen.add(name)
        tokens.append(name)
    notes = ["llama.cpp turns a ▁ inside a text into a space; qkvary keeps it"]
    if tokenizer.joins_spaces:
        notes.append("llama.cpp keeps runs of spaces; qkvary joins them")
    if TokenType.BYTE not in types.values():
        notes.append(
            "llama.cpp stops at characters without a piece; qkvary encodes them as unknown"
        )
    return _make(
        "llama",
        tokens,
        types,
        tokenizer.separator,
        notes,
        pre="default",
        adds_beginning=tokenizer.beginning is not None,
        scores=list(tokenizer.scores),
        bos_token_id=1,
        unknown_token_id=0,
        add_space_prefix=tokenizer.adds_space,
        remove_extra_whitespaces=tokenizer.joins_spaces,
    )


def _convert_library(tokenizer: LibraryTokenizer) -> Vocabulary:
    fields = json.loads(tokenizer.describe()["content"])
    model = fields["model"]
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        raise UsageError(
            f"expected a tokenizer.json with byte-level BPE, got {model.get('type', 'BPE')}"
            f"{' of characters' if model.get('byte_fallback') else ''}: llama.cpp would "
            "encode texts differently; train with the tokenizer of GPT-2 (--tokenizer gpt2) or "
            "with bytes (--tokenizer bytes)"
        )
    tokens = {token: name for name, token in model["vocab"].items()}
    types = dict[int, TokenType]()
    for added in fields.get("added_tokens", ()):
        tokens[added["id"]] = added["content"]
        types[added["id"]] = TokenType.CONTROL
    names = [tokens.get(token, f"[unused {token}]") for token in range(tokenizer.vocabulary)]
    types |= {token: TokenType.UNUSED for token in range(len(names)) if token not in tokens}
    pairs = (one if isinstance(one, str) else " ".join(one) for one in model["merges"])
    special = ", ".join(names[token] for token, kind in types.items() if kind is TokenType.CONTROL)
    return _make(
        "gpt2",
        [name.encode() for name in names],
        types,
        tokenizer.separator,
        [
            (
                f"llama.cpp recognises special tokens inside a text ({special}); qkvary reads them "
                "as plain text"
            )
        ],
        pre=find_splitting(fields),
        merges=list(pairs) or NO_MERGES,
    )


_KINDS = cast(
    "Mapping[type[Any], Callable[[Any], Vocabulary]]",
    {
        ByteTokenizer: _convert_bytes,
        CharacterTokenizer: _convert_characters,
        BytePairTokenizer: _convert_byte_pairs,
        PieceTokenizer: _convert_pieces,
        LibraryTokenizer: _convert_library,
    },
)
