"""Documents as tokens: byte counts and marks."""

import numpy as np
import pytest

from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer, PieceTokenizer, Tokenizer
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


def test_documents_get_a_beginning_or_a_separator() -> None:
    begun = make_text(pieces(), TEXTS)
    assert begun.tokens[begun.starts[:-1]].tolist() == [1, 1, 1]
    assert int(begun.is_mark().sum()) == 3
    ended = make_text(ByteTokenizer(has_separator=True), TEXTS)
    assert ended.tokens[ended.starts[1:] - 1].tolist() == [256] * 3
    assert int(ended.is_mark().sum()) == 3
    assert not make_text(ByteTokenizer(), TEXTS).is_mark().any()


def test_a_mark_has_no_bytes() -> None:
    class Spelled(ByteTokenizer):
        def piece(self, token: int, *, after: int | None = None) -> bytes:
            return b"</s>" if token == self.separator else super().piece(token, after=after)

    text = make_text(Spelled(has_separator=True), TEXTS)
    assert text.count_bytes(everything(text)) == len("".join(TEXTS).encode())


def test_joined_documents_are_one_span() -> None:
    text = make_text(ByteTokenizer(), TEXTS)
    assert text.spans(joined=True).tolist() == [[0, len(text.tokens)]]


@pytest.mark.parametrize("count", [1, 20, 21, 22, 25, 10_000])
def test_a_text_is_cut_behind_any_token(count: int) -> None:
    text = make_text(ByteTokenizer(), TEXTS)
    part = text.cut(count)
    assert part.tokens.tolist() == text.tokens[:count].tolist()
    assert part.starts[0] == 0
    assert part.starts[-1] == len(part.tokens)
    assert (np.diff(part.starts) > 0).all()


def test_text_that_cannot_be_encoded_is_reported() -> None:
    with pytest.raises(UsageError, match=r"document 2 cannot be encoded: .*'x'"):
        make_text(CharacterTokenizer("ab"), ["ab", "xa"])
    with pytest.raises(UsageError, match="expected a text, got an empty one"):
        make_text(ByteTokenizer(), [])


def test_a_prepared_set_gives_the_documents_back() -> None:
    tokenizer, text = open_split(tiny_set().path, "validation")
    assert text.documents == sum(map(bool, VALIDATION))
    assert text.separator == tokenizer.separator
    assert text.count_bytes(everything(text)) == len("".join(VALIDATION))
    _, part = open_split(tiny_set().path, "validation", most=30)
    assert part.tokens.tolist() == text.tokens[:30].tolist()
    assert part.starts[-1] == 30
    with pytest.raises(UsageError, match="choices: train, validation, test"):
        open_split(tiny_set().path, "held-out")
