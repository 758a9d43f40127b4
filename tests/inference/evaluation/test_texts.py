"""Documents as tokens: byte counts and marks."""

from dataclasses import replace

import numpy as np
import pytest

from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer, PieceTokenizer, Tokenizer
from qkvary.inference.evaluation import texts
from qkvary.inference.evaluation.texts import Text, make_text, open_split
from qkvary.storage.errors import UsageError
from tests.data.test_library_tokenizers import with_spaces
from tests.reference import llama2c
from tests.tasks.tiny_networks import VALIDATION, tiny_set

TEXTS = ("the rain in the arena", "an answer, at last!", "the sea: 5 €\n")


def pieces() -> PieceTokenizer:
    return PieceTokenizer(*llama2c.make_pieces(llama2c.SIZES["vocab_size"]))


def everything(text: Text) -> np.ndarray:
    return np.ones(len(text.tokens), dtype=np.bool_)


@pytest.mark.parametrize(
    "tokenizer",
    [
        ByteTokenizer(),
        ByteTokenizer(has_separator=True),
        CharacterTokenizer("".join(sorted(set("".join(TEXTS)))), has_separator=True),
        pieces(),
        with_spaces(),
    ],
    ids=["bytes", "bytes and separator", "characters", "pieces", "spaces with a mark"],
)
def test_the_bytes_of_all_tokens_are_those_of_the_text(tokenizer: Tokenizer) -> None:
    text = make_text(tokenizer, TEXTS)
    assert text.documents == len(TEXTS)
    assert text.count_bytes(everything(text)) == len("".join(TEXTS).encode())
    for first, end in text.spans().tolist():
        chosen = np.zeros(len(text.tokens), dtype=np.bool_)
        chosen[first:end] = True
        document = TEXTS[int(np.searchsorted(text.starts, first))]
        assert text.count_bytes(chosen) == len(document.encode())


class Counting(ByteTokenizer):
    """Bytes, counted."""

    encoded = 0

    def encode(self, text: str) -> list[int]:
        self.encoded += len(text)
        return super().encode(text)


@pytest.mark.parametrize("tokenizer", [pieces(), with_spaces(), ByteTokenizer(has_separator=True)])
@pytest.mark.parametrize("most", [1, 7, 19, 40, 10_000])
def test_the_beginning_of_a_text_has_the_tokens_of_the_whole(
    tokenizer: Tokenizer, most: int
) -> None:
    documents = (*TEXTS, " " * 900 + "the end. " * 200, "not read")
    whole, part = make_text(tokenizer, documents), make_text(tokenizer, documents, most=most)
    assert part.tokens.tolist() == whole.tokens[:most].tolist()
    starts = [start for start in whole.starts.tolist() if start < most]
    assert part.starts[: len(starts)].tolist() == starts
    assert part.starts[-1] == len(part.tokens)


def test_only_the_beginning_of_a_text_is_encoded() -> None:
    tokenizer = Counting()
    make_text(tokenizer, ["a word " * 10_000, "not read"], most=100)
    assert tokenizer.encoded == 3200


def test_a_prepared_set_gives_the_documents_back() -> None:
    tokenizer, text = open_split(tiny_set().path, "validation")
    assert text.documents == sum(map(bool, VALIDATION))
    assert text.separator == tokenizer.separator
    assert text.count_bytes(everything(text)) == len("".join(VALIDATION))
    _, part = open_split(tiny_set().path, "validation", most=30)
    assert part.tokens.tolist() == text.tokens[:30].tolist()
    assert part.starts[-1] == 30
    with pytest.raises(UsageError, match=r"a split held-out, got .* with train, validation, test"):
        open_split(tiny_set().path, "held-out")


def test_a_missing_test_split_is_replaced_by_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_set()
    splits = {name: data.splits[name] for name in ("train", "validation")}
    monkeypatch.setattr(texts, "open_prepared", lambda _path: replace(data, splits=splits))
    _, text = open_split(data.path, "test")
    assert text.split == "validation"
    assert text.tokens.tolist() == open_split(data.path, "validation")[1].tokens.tolist()
