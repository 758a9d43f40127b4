"""Words are learnt by frequency and read back without loss."""

import pytest

from qkvary.data.word_tokenizer import SPECIALS, UNKNOWN, WordTokenizer, split_words

SENTENCES = ("A man, a dog.", "A dog's man!", "Ein Mann im T-Shirt.")


@pytest.mark.parametrize(
    "sentence",
    [
        *SENTENCES,
        "He said: \"No 3.5 (or so)\" - then 'left'.",
        "Zwei Männer – ohne Größe … äßé 漢字",
        "don't  \t keep   spaces",
        "!?",
        "'s",
    ],
)
def test_words_joined_are_the_sentence(sentence: str) -> None:
    assert "".join(split_words(sentence)) == " " + " ".join(sentence.split())
    tokenizer = WordTokenizer.learn([sentence])
    assert tokenizer.decode(tokenizer.encode(sentence)) == " ".join(sentence.split())


def test_words_and_marks_are_tokens() -> None:
    assert split_words("A dog's T-Shirt.") == [" A", " dog", "'s", " T", "-", "Shirt", "."]


def test_frequent_words_come_first_and_equal_ones_by_name() -> None:
    tokenizer = WordTokenizer.learn(SENTENCES)
    assert tokenizer.words[:4] == SPECIALS == ("<unk>", "<pad>", "<bos>", "<eos>")
    assert tokenizer.words[4:8] == (" A", " dog", " man", ".")
    assert WordTokenizer.learn(reversed(SENTENCES)).words == tokenizer.words
    assert tokenizer.vocabulary == len(set(tokenizer.words)) == 4 + 14


def test_rare_and_new_words_are_unknown() -> None:
    tokenizer = WordTokenizer.learn(SENTENCES, min_count=2)
    assert tokenizer.words[4:] == (" A", " dog", " man", ".")
    tokens = tokenizer.encode("A cat, a man.")
    assert tokens == [4, UNKNOWN, UNKNOWN, UNKNOWN, 6, 7]
    assert tokenizer.decode([2, 4, UNKNOWN, 7, 3, 1, 1]) == "A <unk>."
