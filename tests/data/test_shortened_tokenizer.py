"""GPT-2's tokens, but only the first ones."""

import pytest

from qkvary.data.byte_pairs import BytePairTokenizer
from tests.data.merged import KINDS, TEXT, merges_of
from tests.data.test_library_tokenizers import library_gpt2


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_tokenizer_of_the_first_merges(kind: str) -> None:
    whole = BytePairTokenizer(merges_of(kind))
    short = whole.shortened(300)
    assert (short.vocabulary, short.separator, short.ends) == (300, 299, (299,))
    assert short.pieces == whole.pieces[:299]
    tokens = short.encode(TEXT)
    first = "\n".join(merges_of(kind).split("\n")[: 1 + 300 - 257])
    assert tokens == library_gpt2(first).encode(TEXT)
    assert len(tokens) > len(whole.encode(TEXT))
    assert whole.shortened(whole.vocabulary).describe() == whole.describe()
    assert whole.shortened(257).encode("ab") == [64, 65]
