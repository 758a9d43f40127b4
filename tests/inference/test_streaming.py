"""Concatenated parts of a text are the whole text, however it was split."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from qkvary.inference.streaming import TextStream, find_stop
from tests.conftest import examples

TEXTS = st.text(alphabet="ab c\né€😀👨‍👩‍👧あ́", max_size=30)
STOPS = st.lists(st.text(alphabet="ab é😀", min_size=1, max_size=4), max_size=3)
CUTS = st.lists(st.integers(0, 60), max_size=20)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place for place in places if place < len(data)} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)] or [b""]


def naive_stop(text: str, stop: list[str]) -> int | None:
    """Read on character by character until some stop string is there."""
    for end in range(len(text) + 1):
        starts = [end - len(one) for one in stop if text[:end].endswith(one)]
        if starts:
            return min(starts)
    return None


@examples(100)
@given(data=st.one_of(TEXTS.map(str.encode), st.binary(max_size=30)), places=CUTS)
def test_any_split_of_bytes_gives_the_same_text(data: bytes, places: list[int]) -> None:
    stream = TextStream()
    pieces = [stream.feed(part) for part in cut(data, places)] + [stream.finish()]
    assert "".join(pieces) == data.decode("utf-8", "replace")


@examples(100)
@given(text=TEXTS, places=CUTS)
def test_only_whole_characters_are_shown(text: str, places: list[int]) -> None:
    stream = TextStream()
    shown = "".join(stream.feed(part) for part in cut(text.encode(), places))
    assert "\ufffd" not in shown
    assert text.startswith(shown)


@examples(250)
@given(text=TEXTS, stop=STOPS, places=CUTS)
def test_stop_strings_do_not_depend_on_token_borders(
    text: str, stop: list[str], places: list[int]
) -> None:
    end = naive_stop(text, stop)
    stream = TextStream(stop)
    shown = ""
    for part in cut(text.encode(), places):
        shown += stream.feed(part)
        # Nothing is ever taken back.
        assert text[:end].startswith(shown)
        if stream.stopped:
            break
    shown += stream.finish()
    assert shown == text[:end]
    assert stream.stopped is (end is not None)
    assert find_stop(text, stop) == end


def test_only_possible_stop_strings_are_held_back() -> None:
    stream = TextStream(("STOP", "abc"))
    assert stream.feed(b"x ab") == "x "
    assert stream.feed(b"!") == "ab!"
    assert stream.feed(b"ST") == ""
    assert stream.feed(b"AY") == "STAY"
    assert stream.feed(b"ab") == ""
    assert stream.finish() == "ab"
