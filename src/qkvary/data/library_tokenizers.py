"""Runs a Hugging Face tokenizer from a ``tokenizer.json`` with the ``tokenizers`` library.

The bytes of a token depend on the decoder: byte-level letters, or the text that the library
decodes, including its treatment of spaces. The library runs in a separate process, because a
``tokenizer.json`` from an untrusted source can make the library crash, run for hours or fill the
memory.
"""

import json
import re
from typing import Any

from qkvary.data.byte_pairs import byte_letters, text_bytes
from qkvary.storage.packages import require
from qkvary.storage.parser_processes import ParserProcess
from qkvary.storage.untrusted_files import parse_json, short_reason

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
SEPARATORS = (
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<|end_of_text|>",
    "<|end▁of▁sentence|>",
    "[SEP]",
)
"""Names of the token that ends a document; the first that exists is used."""


class LibraryTokenizer:
    """A tokenizer that the ``tokenizers`` library runs."""

    beginning: int | None = None

    def __init__(self, content: str, *, separator: str = "") -> None:
        """Load a ``tokenizer.json``; the default separator is the first of ``SEPARATORS`` in it."""
        require("tokenizers")
        fields = _fields(content)
        # Truncation and padding are left to the tasks.
        fields["truncation"] = fields["padding"] = None
        self._content = json.dumps(fields, ensure_ascii=True, separators=(",", ":"))
        self._library = ParserProcess("qkvary.data.tokenizer_process", self._content)
        try:
            found = self._library.ask(None)
        except ValueError as error:
            raise ValueError(f"expected a tokenizer.json, got something else: {error}") from error
        self._numbers: dict[str, int] = found["numbers"]
        self._names = {token: name for name, token in self._numbers.items()}
        self._names |= {token: name for token, name, _ in found["added"]}
        self._special = frozenset(token for token, _, special in found["added"] if special)
        self.cuts_at_spaces = _splits_like_gpt2(fields)
        """Whether a long text may be split before spaces without changing the tokens."""
        self._decoder = json.dumps(fields.get("decoder"))
        self.separator: int | None = self._find(separator)
        self.ends = (self.separator,)
        self.vocabulary = 1 + max(self._numbers.values())
        self._letters = byte_letters()
        self._separator_name = self._names[self.separator]

    def _find(self, name: str) -> int:
        for candidate in (name,) if name else SEPARATORS:
            token = self._numbers.get(candidate)
            if token is not None:
                return token
        raise ValueError(
            f"expected an end-of-document token, got {name!r}, which this tokenizer lacks"
            if name
            else "expected an end-of-document token, got a tokenizer with none of "
            f"{', '.join(SEPARATORS)}; name one with `qkvary data prepare ... --separator TOKEN`"
        )

    def encode(self, text: str) -> list[int]:
        """Return the tokens of the text without special tokens."""
        text_bytes(text)
        try:
            return self._library.ask(text, characters=len(text))
        except ValueError as error:
            raise ValueError(f"this tokenizer cannot encode the text: {error}") from error

    def piece(self, token: int, *, after: int | None = None) -> bytes:
        """Return the bytes that a token adds to the text; special tokens add none."""
        name = self._names.get(token)
        if name is None or token in self._special:
            return b""
        if '"ByteLevel"' in self._decoder:
            try:
                return bytes(self._letters[letter] for letter in name)
            except KeyError:
                return name.encode()
        match = _BYTE_PIECE.fullmatch(name)
        if match and '"ByteFallback"' in self._decoder:
            return bytes((int(match[1], 16),))
        if after is None:
            return self._library.ask([token]).encode()
        before, both = self._library.ask([after]), self._library.ask([after, token])
        return both.removeprefix(before).encode()

    def describe(self) -> dict[str, Any]:
        """Return the whole ``tokenizer.json``."""
        return {"kind": "library", "content": self._content, "separator": self._separator_name}


def _splits_like_gpt2(fields: dict[str, Any]) -> bool:
    splitting = fields.get("pre_tokenizer") or {}
    return (
        fields.get("normalizer") is None
        and splitting.get("type") == "ByteLevel"
        and splitting.get("add_prefix_space") is False
        and splitting.get("use_regex", True) is True
    )


def _fields(content: str) -> dict[str, Any]:
    try:
        fields = parse_json(content)
    except ValueError as error:
        said = short_reason(error)
        raise ValueError(f"expected a tokenizer.json, got invalid JSON: {said}") from error
    if not isinstance(fields, dict) or "model" not in fields:
        raise ValueError("expected a tokenizer.json with a model, got another JSON document")
    return fields
