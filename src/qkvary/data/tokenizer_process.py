"""Process, started with ``python -m``, that runs the library ``tokenizers``."""

from collections.abc import Callable
from typing import Any

import tokenizers

from qkvary.storage.parser_processes import serve

LARGEST_TOKEN = 2**24


def load(content: str) -> Callable[[Any], Any]:
    """Return a function that answers requests: it encodes a text or decodes a list of tokens."""
    library = tokenizers.Tokenizer.from_str(content)
    # Names of special tokens in a text are treated as ordinary text.
    library.encode_special_tokens = True

    def handle(request: str | list[int] | None) -> object:
        if request is None:
            return _describe(library)
        if isinstance(request, str):
            return library.encode(request, add_special_tokens=False).ids
        return library.decode(request)

    return handle


def _describe(library: tokenizers.Tokenizer) -> dict[str, object]:
    numbers = library.get_vocab(with_added_tokens=True)
    if not 0 <= max(numbers.values(), default=-1) <= LARGEST_TOKEN:
        largest = max(numbers.values(), default="none")
        raise ValueError(f"expected tokens from 0 to {LARGEST_TOKEN:,}, got {largest}")
    added = library.get_added_tokens_decoder()
    return {
        "numbers": numbers,
        "added": [(token, entry.content, entry.special) for token, entry in added.items()],
    }


if __name__ == "__main__":
    serve(load)
