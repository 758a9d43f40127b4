"""Our tokenizers and the converted ones give the same tokens."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from qkvary.checkpoints.huggingface.fast_tokenizers import convert_tokenizer
from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer, PieceTokenizer, Tokenizer
from qkvary.storage.errors import UsageError
from tests.data.merged import merges_of
from tests.reference import llama2c

ALPHABET = "abcxyz ,.é€\n"
PIECES = llama2c.make_pieces(llama2c.SIZES["vocab_size"])
TOKENIZERS: dict[str, Tokenizer] = {
    "characters": CharacterTokenizer(ALPHABET),
    "characters and end": CharacterTokenizer(ALPHABET, has_separator=True),
    "bytes": ByteTokenizer(),
    "bytes and end": ByteTokenizer(has_separator=True),
    "byte pairs": BytePairTokenizer(merges_of("stand-in")),
    "pieces": PieceTokenizer(*PIECES),
    "pieces, joined spaces": PieceTokenizer(*PIECES, joins_spaces=True),
}
SPECIAL = ("<s>", "</s>", "<unk>", "<|endoftext|>")
TEXTS = st.text(
    st.one_of(
        st.sampled_from("etaoinhsr  .,<>\n\t"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=40,
)


@pytest.mark.parametrize("name", [one for one in TOKENIZERS if "characters" not in one])
@given(text=TEXTS)
@example(text=" the \n rain  \n\n in ")
@example(text="  \n  ")
@example(text="")
def test_any_text_has_the_same_tokens(name: str, text: str) -> None:
    assume(not any(special in text for special in SPECIAL))
    ours = TOKENIZERS[name]
    assert convert_tokenizer(ours).library.encode(text).ids == ours.encode(text)


@pytest.mark.parametrize("name", [one for one in TOKENIZERS if "characters" not in one])
@given(text=st.text(st.sampled_from("etaoin hsré€,."), min_size=1, max_size=40))
def test_tokens_become_the_text_again(name: str, text: str) -> None:
    ours, library = TOKENIZERS[name], convert_tokenizer(TOKENIZERS[name]).library
    if "joined" in name:
        text = " ".join(text.split()) or "a"
    assert library.decode(ours.encode(text)) == text


def test_inexpressible_tokenizers_are_rejected() -> None:
    pieces, scores = [list(part) for part in PIECES]
    pieces[-1] = b"\xff\xfe"
    with pytest.raises(UsageError, match="expected pieces of whole characters"):
        convert_tokenizer(PieceTokenizer(pieces, scores))
    with pytest.raises(UsageError, match="expected a tokenizer of ours, got str"):
        convert_tokenizer("no tokenizer")  # type: ignore[arg-type]
