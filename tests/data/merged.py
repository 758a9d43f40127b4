"""GPT-2's list of merges where ``QKVARY_DATA`` has it, and a short one that always exists.

The encoder here is written from the description of the method, without the library's help: words
by character classes, then the first merge of the list that applies anywhere, again and again.
"""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from qkvary.data.byte_pairs import byte_letters

DATA = Path(os.environ["QKVARY_DATA"]) if os.environ.get("QKVARY_DATA") else None
KINDS = ["stand-in", *(["published"] if DATA else [])]
TEXT = (
    "the cat sat on the mat, and the other cat's hat was there too. 1,234 cats they'll have; "
    "naïve cafés don't. " * 3 + "\n\n\tthe end  of it\n"
)
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def merges_of(kind: str) -> str:
    """The list of merges."""
    if kind == "published":
        assert DATA is not None
        return (DATA / "gpt2_bpe" / "vocab.bpe").read_text("utf-8")
    return "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in train(TEXT, 90)) + "\n"


def class_of(letter: str) -> str:
    if letter.isspace():
        return "space"
    major = unicodedata.category(letter)[0]
    return {"L": "letter", "N": "number"}.get(major, "other")


def words(text: str) -> Iterator[str]:
    """What is never joined across."""
    place = 0
    while place < len(text):
        found = next((one for one in CONTRACTIONS if text.startswith(one, place)), None)
        if found is None:
            found = _word(text, place)
        yield found
        place += len(found)


def _word(text: str, place: int) -> str:
    first = place + 1 if text[place] == " " and place + 1 < len(text) else place
    kind = class_of(text[first])
    if kind != "space":
        end = first
        while end < len(text) and class_of(text[end]) == kind:
            end += 1
        return text[place:end]
    end = place
    while end < len(text) and text[end].isspace():
        end += 1
    # The last space of a run belongs to the word behind it.
    return text[place:end] if end == len(text) or end == place + 1 else text[place : end - 1]


@cache
def train(text: str, count: int) -> tuple[tuple[str, str], ...]:
    """The merges that counting gives."""
    letters = {byte: letter for letter, byte in byte_letters().items()}
    parts = [[letters[byte] for byte in word.encode()] for word in words(text)]
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        counts = Counter(pair for word in parts for pair in pairwise(word))
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        parts = [_joined(word, best) for word in parts]
    return tuple(merges)


def _joined(word: list[str], pair: tuple[str, str]) -> list[str]:
    found: list[str] = []
    for letter in word:
        if found and (found[-1], letter) == pair and found[-1] != "":
            found[-1] += letter
            # A pair is not joined with what it has just become.
            found.append("")
        else:
            found.append(letter)
    return [part for part in found if part]


def encode(text: str, merges: str) -> list[int]:
    """The tokens of a text."""
    lines = [line for line in merges.split("\n") if line.strip() and not line.startswith("#ver")]
    pairs = [tuple(line.split(" ")) for line in lines]
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    letters = {byte: letter for letter, byte in byte_letters().items()}
    numbers = {letter: number for number, letter in enumerate(byte_letters())}
    numbers |= {first + second: 256 + rank for rank, (first, second) in enumerate(pairs)}
    tokens: list[int] = []
    for word in words(text):
        parts = [letters[byte] for byte in word.encode()]
        while True:
            known = [(ranks[pair], pair) for pair in pairwise(parts) if pair in ranks]
            if not known:
                break
            parts = _joined(parts, min(known)[1])
        tokens += [numbers[part] for part in parts]
    return tokens
