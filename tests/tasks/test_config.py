import dataclasses
from typing import Any

import pytest

from qkvary.tasks.config import (
    CharacterTaskConfig,
    LanguageTaskConfig,
    MaskedTaskConfig,
    NumberTaskConfig,
    RecallTaskConfig,
    SequenceTaskConfig,
    TaskConfig,
    TranslationTaskConfig,
)

REVERSE = SequenceTaskConfig(name="reverse", length=7)
CHARACTERS = CharacterTaskConfig(context=13)
LANGUAGE = LanguageTaskConfig(data="here", data_sha256="0" * 64, context=7)
MASKED = MaskedTaskConfig(context=8)
NUMBERS = NumberTaskConfig(context=16)
RECALL = RecallTaskConfig(length=20, pairs=5)
TRANSLATION = TranslationTaskConfig(source="en", target="de")
EXAMPLES = ("train_examples", "validation_examples", "test_examples")


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (
            REVERSE,
            {"name": "revers"},
            "name to be one of reverse, sort, sub, swap, copy, got",
        ),
        (REVERSE, {"length": 0}, "expected length of SequenceTaskConfig in 1 ... 2"),
        (REVERSE, {"vocabulary": 1}, "vocabulary must be at least 2, got 1"),
        (REVERSE, {"train_examples": 0}, "train_examples of "),
        (CHARACTERS, {"context": 0}, "expected context of CharacterTaskConfig"),
        (CHARACTERS, {"evaluation": "all"}, "evaluation to be one of exact, sampled, got 'all'"),
        (CHARACTERS, {"train_fraction": 1.0}, "train_fraction must be between 0 and 1, got 1.0"),
        (LANGUAGE, {"context": 0}, "expected context of "),
        (
            LANGUAGE,
            {"protocol": "padded"},
            "protocol to be one of packed, padded-paper, got 'padded'",
        ),
        (
            LANGUAGE,
            {"protocol": "padded-paper", "document_mask": True},
            "expected the protocol `packed` with",
        ),
        (MASKED, {"share": 0.0}, r"share must be in \(0, 1\], got 0.0"),
        (MASKED, {"share": 1.5}, "got 1.5"),
        (MASKED, {"context": 0}, "expected context of "),
        (NUMBERS, {"protocol": "dirty"}, "expected protocol to be one of as-published, clean, got"),
        (RECALL, {"length": 9}, "task recall: length must be at least 20 for 5 pairs, got 9"),
        (RECALL, {"test_examples": 0}, "expected test_examples of RecallTaskConfig in 1"),
        (TRANSLATION, {"target": "en"}, "expected two languages, got en for both"),
        (TRANSLATION, {"min_count": 0}, "expected min_count of "),
        (
            TRANSLATION,
            {"protocol": "neat"},
            "protocol to be one of as-published, clean, got 'neat'",
        ),
        (TRANSLATION, {"label_smoothing": 1.0}, r"expected label_smoothing in \[0, 1\), got 1.0"),
    ],
)
def test_a_task_without_meaning_is_refused(
    config: TaskConfig, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **fields)


def test_a_number_of_a_users_task_may_be_0() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Shifted(TaskConfig):
        name: str = "shifted"
        shift: int = 0
        size: int = 1

    assert Shifted(shift=-1).shift == -1
    with pytest.raises(ValueError, match="expected size of Shifted"):
        Shifted(size=0)


@pytest.mark.parametrize("field", ["length", "vocabulary", "data_seed", *EXAMPLES])
def test_the_fingerprint_of_sequences_depends_on_all_that_is_drawn(field: str) -> None:
    changed = dataclasses.replace(REVERSE, **{field: getattr(REVERSE, field) + 1})
    assert changed.data_fingerprint != REVERSE.data_fingerprint
