"""GPT-2's tokens, but only the first ones."""

from pathlib import Path

import pytest

from qkvary.data import tokenizer_files
from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.tokenizer_files import load_tokenizer, name_tokenizer
from qkvary.storage.errors import UsageError
from tests.data import merged
from tests.data.merged import KINDS, merges_of


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_tokenizer_of_the_first_merges(kind: str) -> None:
    whole = BytePairTokenizer(merges_of(kind))
    short = whole.shortened(300)
    assert (short.vocabulary, short.separator, short.ends) == (300, 299, (299,))
    assert short.pieces == whole.pieces[:299]
    tokens = short.encode(merged.TEXT)
    first = "\n".join(merges_of(kind).split("\n")[: 1 + 300 - 257])
    assert tokens == merged.encode(merged.TEXT, first)
    assert len(tokens) > len(whole.encode(merged.TEXT))
    assert whole.shortened(whole.vocabulary).describe() == whole.describe()
    assert whole.shortened(257).encode("ab") == [64, 65]


def test_it_has_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in = BytePairTokenizer(merges_of("stand-in"))
    monkeypatch.setattr(tokenizer_files, "load_gpt2", lambda: stand_in)
    found = load_tokenizer("gpt2-280")
    assert found.describe() == stand_in.shortened(280).describe()
    assert name_tokenizer("gpt2-280") == "gpt2-280"
    with pytest.raises(UsageError, match="tokenizer gpt2-256: expected a vocabulary of 257 to "):
        load_tokenizer("gpt2-256")
    with pytest.raises(UsageError, match="gpt2-280 has its own separator"):
        load_tokenizer("gpt2-280", separator="x")
    with pytest.raises(UsageError, match="choices: gpt2, bytes, characters, gpt2-4096, or the"):
        load_tokenizer(str(tmp_path / "none"))
