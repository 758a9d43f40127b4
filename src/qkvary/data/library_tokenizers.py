"""Any tokenizer of Hugging Face, by its ``tokenizer.json``: the library of that name runs it.

What a token adds to a text depends on how its tokenizer puts pieces together: bytes in letters, or
whatever the library says, which also knows what becomes of marks for spaces.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qkvary.data.byte_pairs import byte_letters, text_bytes
from qkvary.storage.errors import UsageError

if TYPE_CHECKING:
    import tokenizers

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
SEPARATORS = (
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<|end_of_text|>",
    "<|end▁of▁sentence|>",
    "[SEP]",
)
"""What ends a document, by the names that tokenizers have given it; the first that exists."""


class LibraryTokenizer:
    """A tokenizer that the ``tokenizers`` library runs."""

    beginning: int | None = None

    def __init__(self, content: str, *, separator: str = "") -> None:
        """Read a tokenizer.

        Args:
            content: A ``tokenizer.json``.
            separator: The token behind every document; by default the one of ``SEPARATORS``.

        Raises:
            ValueError: if it is none, or has no such token.
            UsageError: if the library is not installed.
        """
        try:
            # Only who uses such a tokenizer needs the library.
            import tokenizers  # noqa: PLC0415
        except ModuleNotFoundError:
            raise UsageError(
                "tokenizers is not installed: pip install 'qkvary[data]' brings it"
            ) from None
        fields = _fields(content)
        # A text is cut off or filled up by nobody but the task.
        fields["truncation"] = fields["padding"] = None
        self._content = json.dumps(fields, ensure_ascii=True, separators=(",", ":"))
        try:
            self.library: tokenizers.Tokenizer = tokenizers.Tokenizer.from_str(self._content)
        except Exception as error:  # the library raises nothing more special
            raise ValueError(f"expected a tokenizer.json, got something else: {error}") from error
        # What marks documents off in a text is a text like any other.
        self.library.encode_special_tokens = True
        self.cuts_at_spaces = _is_like_gpt2(fields)
        """Whether a long text may be cut before spaces and give the same tokens."""
        self._decoder = json.dumps(fields.get("decoder"))
        self.separator: int | None = self._find(separator)
        self.ends = (self.separator,)
        self._vocabulary = 1 + max(self.library.get_vocab(with_added_tokens=True).values())
        self._separator_name = self.library.id_to_token(self.separator)

    def _find(self, name: str) -> int:
        for candidate in (name,) if name else SEPARATORS:
            token = self.library.token_to_id(candidate)
            if token is not None:
                return token
        raise ValueError(
            f"expected a token that ends documents, got {name!r}, which this tokenizer has not"
            if name
            else "expected a token that ends documents, got a tokenizer with none of "
            f"{', '.join(SEPARATORS)}; name one with `qkvary data prepare ... --separator TOKEN`"
        )

    @property
    def vocabulary(self) -> int:
        """Tokens, added ones included, up to the highest number."""
        return self._vocabulary

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self.library.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)

    @cached_property
    def _letters(self) -> dict[str, int]:
        return byte_letters()

    def encode(self, text: str) -> list[int]:
        """The tokens of the text, and none that the library would add.

        Raises:
            ValueError: for half of a surrogate pair, which has no bytes.
        """
        text_bytes(text)
        return self.library.encode(text, add_special_tokens=False).ids

    def piece(self, token: int, *, after: int | None = None) -> bytes:
        """The bytes that a token adds; those that are not text add nothing."""
        name = self.library.id_to_token(token)
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
            return self.library.decode([token]).encode()
        before = self.library.decode([after])
        return self.library.decode([after, token]).removeprefix(before).encode()

    def describe(self) -> dict[str, Any]:
        """The whole ``tokenizer.json``."""
        return {"kind": "library", "content": self._content, "separator": self._separator_name}


def _is_like_gpt2(fields: dict[str, Any]) -> bool:
    splitting = fields.get("pre_tokenizer") or {}
    return (
        fields.get("normalizer") is None
        and splitting.get("type") == "ByteLevel"
        and splitting.get("add_prefix_space") is False
        and splitting.get("use_regex", True) is True
    )


def _fields(content: str) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a tokenizer.json, got no JSON: {error}") from error
    if not isinstance(fields, dict) or "model" not in fields:
        raise ValueError("expected a tokenizer.json with a model, got another JSON document")
    return fields
