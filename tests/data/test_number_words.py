"""The spelled numbers are those of the published data, and read back as what they spell."""

import pytest

from qkvary.data.number_words import END, load_number_words

UNITS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
VALUES = {word: value for value, word in enumerate(UNITS.split(), start=1)}
VALUES |= {word: 10 * value for value, word in enumerate(TENS.split(), start=2)}


def read(words: list[str]) -> int:
    """Words to a number, as a person reads them."""
    number = 0
    for word in words:
        factor = {"hundred": 100, "thousand": 1000}.get(word)
        # Units of a thousand stay units when they are read as those of a hundred follow.
        number = number // 1000 * 1000 + number % 1000 * factor if factor else number + VALUES[word]
    return number


@pytest.mark.parametrize("complete", [True, False])
def test_all_numbers_are_spelled_in_order(complete: bool) -> None:
    words = load_number_words(complete=complete)
    text = " ".join(words.vocabulary[code] for code in words.codes.tolist())
    numbers = [read(spelled.split()) for spelled in text.split(f" {END} ")]
    assert numbers == [one for one in range(1, 10_000) if complete or one != 8_000]


def test_sizes_are_the_published_ones() -> None:
    assert len(load_number_words(complete=False).codes) == 63_095
    assert len(load_number_words(complete=True).codes) == 63_098
    for complete in (True, False):
        assert len(set(load_number_words(complete=complete).vocabulary)) == 30
    first = load_number_words(complete=False).codes[:10].tolist()
    assert first == [0, 1, 2, 1, 3, 1, 4, 1, 5, 1]


def test_the_most_frequent_word_is_as_frequent_as_the_public_code_prints() -> None:
    """Its first example: the word after every three, in the last fifth; printed as 0.15165."""
    codes = load_number_words(complete=False).codes.tolist()
    after = [codes[i + 3] for i in range(0, len(codes) - 4, 3)]
    last = after[int(0.8 * len(after)) :]
    assert len(after) == 21_031
    thousand = load_number_words(complete=False).vocabulary.index("thousand")
    assert max(range(30), key=last.count) == thousand == 29
    assert last.count(thousand) / len(last) == pytest.approx(0.15165200855716662, rel=1e-12)
