"""Runs of words that questions share with a training text, against a plain search."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.prepared import PreparedData
from qkvary.data.tokenizers import CharacterTokenizer, Tokenizer
from qkvary.inference.evaluation import contamination
from qkvary.inference.evaluation.contamination import TrainingText
from tests.data.merged import KINDS, merges_of
from tests.data.small_sets import BYTES, make_set
from tests.inference.evaluation.test_texts import pieces
from tests.reference.shared_runs import shares_a_run

LONG = (
    "In the morning the old keeper of the lighthouse counted seventeen ships, and none of them "
    "turned towards the harbour."
)
"""19 words."""


def made(folder: Path, documents: Sequence[str], is_cut: bool = False) -> PreparedData:
    """A training split; a cut one has a shard for every few words."""
    folder = folder / str(len(list(folder.iterdir())))
    return make_set(folder, documents, groups=(40, 90) if is_cut else (2**20, 2**20))


def find(data: PreparedData, questions: Sequence[str]) -> list[bool]:
    return TrainingText(data).find(questions)


SENTENCES = st.lists(
    st.sampled_from(["a", "B", "é", "e\u0301", "d'e", "d’e", "ß", "SS", "中", "7", ".", "-"]),
    max_size=22,
).map(lambda parts: " ".join(parts).replace(" - ", "-"))


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    documents=st.lists(SENTENCES.filter(bool), min_size=1, max_size=5),
    questions=st.lists(SENTENCES, max_size=5),
    planted=st.integers(0, 4),
    run=st.sampled_from([1, 2, 3, 13]),
    is_cut=st.booleans(),
)
def test_matches_equal_those_of_a_plain_search(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    documents: list[str],
    questions: list[str],
    planted: int,
    run: int,
    is_cut: bool,
) -> None:
    asked = [*questions, f"x {documents[planted % len(documents)]} y", LONG]
    monkeypatch.setattr(contamination, "RUN", run)
    data = made(tmp_path, documents, is_cut)
    assert find(data, asked) == [shares_a_run(one, documents, run) for one in asked]


@pytest.mark.parametrize("name", ["bytes", "characters", "pieces", *KINDS])
def test_a_planted_question_is_found_with_any_tokenizer(tmp_path: Path, name: str) -> None:
    train = ["Nothing here.", f"A story. {LONG.upper()} The end.", "One two three, four five."] * 3
    tokenizer: Tokenizer = {
        "bytes": lambda: BYTES,
        "characters": lambda: CharacterTokenizer(
            "".join(sorted(set("".join(train) + "held out"))), has_separator=True
        ),
        "pieces": pieces,
    }.get(name, lambda: BytePairTokenizer(merges_of(name)))()
    data = make_set(tmp_path, train, tokenizer=tokenizer)
    assert len(list(data.path.glob("train-*.bin"))) > 3, "there are several shards"
    words = LONG.split()
    asked = [
        LONG,
        " ".join([*words[:13], *["other"] * 9]),
        " ".join([*words[:12], *["other"] * 9]),
        " ".join([*["other"] * 9, *words[6:]]),
        "two: three four",
        "two four",
        "here one",
        "held out",
        "...",
        "",
    ]
    expected = [True, True, False, True, True, False, False, False, False, False]
    assert find(data, asked) == expected == [shares_a_run(one, train) for one in asked]


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("DON’T stop", "don't stop"),
        ("an \u00e9lan", "an e\u0301lan"),
        ("ﬁve ｆｅｅｔ", "five feet"),
        ("well - known—name", "well-known name"),
        ("ΟΔΟΣ", "οδος"),
        ("a\u00a0b\u2009c\x00d\u2028e", "a b c d e"),
        ("he said 😀 so", "he said so"),
    ],
)
def test_spelling_does_not_matter(tmp_path: Path, text: str, asked: str) -> None:
    assert find(made(tmp_path, [text]), [asked, f"{asked} z"]) == [True, False]
    assert find(made(tmp_path, [asked]), [text]) == [True]
    assert shares_a_run(asked, [text])
