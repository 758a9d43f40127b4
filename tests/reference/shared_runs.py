"""Which questions share 13 words in a row with a document, found the plain way."""

import unicodedata
from collections.abc import Sequence


def plain_words(text: str) -> str:
    """The words of a text with a space around each."""
    spelled = unicodedata.normalize("NFKC", text).replace("'", "").replace("’", "").casefold()
    return f" {' '.join(''.join(one if one.isalnum() else ' ' for one in spelled).split())} "


def shares_a_run(question: str, documents: Sequence[str], run: int = 13) -> bool:
    words = plain_words(question).split()
    if not words:
        return False
    size = min(run, len(words))
    runs = [f" {' '.join(words[at : at + size])} " for at in range(len(words) - size + 1)]
    return any(one in text for text in map(plain_words, documents) for one in runs)
