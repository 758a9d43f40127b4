import dataclasses

import pytest

from qkvary.tasks.config import CharacterTaskConfig, SequenceTaskConfig

REVERSE = SequenceTaskConfig(name="reverse", length=7)
CHARACTERS = CharacterTaskConfig(context=13)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "revers"}, "expected sequence task out of reverse, sort, sub, swap, copy, got"),
        ({"length": 0}, "task reverse: length must be at least 1, got 0"),
        ({"train_examples": 0}, "train_examples must be at least 1"),
    ],
)
def test_a_sequence_task_without_meaning_is_refused(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(REVERSE, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": 0}, "task characters: context must be at least 1, got 0"),
        ({"evaluation": "all"}, "expected evaluation out of exact, sampled, got 'all'"),
        ({"train_fraction": 1.0}, "train_fraction must be between 0 and 1, got 1.0"),
    ],
)
def test_a_character_task_without_meaning_is_refused(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CHARACTERS, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 8},
        {"vocabulary": 11},
        {"train_examples": 49_999},
        {"validation_examples": 999},
        {"test_examples": 9_999},
        {"data_seed": 43},
    ],
)
def test_the_fingerprint_of_sequences_depends_on_all_that_is_drawn(
    fields: dict[str, object],
) -> None:
    changed = dataclasses.replace(REVERSE, **fields)
    assert changed.data_fingerprint != REVERSE.data_fingerprint
