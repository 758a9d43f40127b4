"""Our tokenizers and the converted ones give the same tokens."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from qkvary.checkpoints.huggingface.fast_tokenizers import convert_tokenizer
from qkvary.data.tokenizers import PieceTokenizer, Tokenizer
from qkvary.storage.errors import UsageError
from tests.checkpoints.gguf.test_vocabularies import PIECES
from tests.checkpoints.gguf.test_vocabularies import TOKENIZERS as VOCABULARIES

NAMES = ("bytes", "bytes and end", "byte pairs", "pieces")
TOKENIZERS: dict[str, Tokenizer] = {
    **{name: VOCABULARIES[name] for name in NAMES},
    "pieces, joined spaces": PieceTokenizer(*PIECES, joins_spaces=True),
}
SPECIAL = ("<s>", "</s>", "<unk>", "<|endoftext|>")
LETTERS = st.sampled_from("etaoinhsr  .,<>\n\t") | st.characters(exclude_categories=["Cs"])


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(LETTERS, max_size=40))
@example(text=" the \n rain  \n\n in ")
@example(text="  \n  ")
@example(text="")
def test_any_text_has_the_same_tokens(name: str, text: str) -> None:
    assume(not any(special in text for special in SPECIAL))
    ours = TOKENIZERS[name]
    assert convert_tokenizer(ours).library.encode(text).ids == ours.encode(text)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(st.sampled_from("etaoin hsré€,."), min_size=1, max_size=40))
def test_tokens_become_the_text_again(name: str, text: str) -> None:
    ours, library = TOKENIZERS[name], convert_tokenizer(TOKENIZERS[name]).library
    if "joined" in name:
        text = " ".join(text.split()) or "a"
    assert library.decode(ours.encode(text)) == text


def test_inexpressible_tokenizers_are_rejected() -> None:
    pieces, scores = [list(part) for part in PIECES]
    pieces[-1] = b"\xff\xfe"
    with pytest.raises(UsageError, match="expected pieces that are valid UTF-8"):
        convert_tokenizer(PieceTokenizer(pieces, scores))
    with pytest.raises(UsageError, match="expected a qkvary tokenizer, got str"):
        convert_tokenizer("no tokenizer")  # type: ignore[arg-type]
