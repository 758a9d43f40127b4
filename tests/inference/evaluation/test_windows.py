"""Every token of a document but its first is scored once, with enough context."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qkvary.inference.evaluation.windows import Windows, batch, cut

DOCUMENTS = st.lists(st.integers(0, 40), min_size=0, max_size=7)


def spans_of(lengths: list[int]) -> np.ndarray:
    ends = np.cumsum([0, *lengths])
    return np.stack((ends[:-1], ends[1:]), axis=1)


def targets_of(windows: Windows) -> list[tuple[int, int]]:
    """Every scored place, and how many tokens are read before it."""
    return [
        (int(start) + offset + 1, offset + 1)
        for start, length, known in zip(windows.starts, windows.lengths, windows.known, strict=True)
        for offset in range(int(known), int(length))
    ]


@given(lengths=DOCUMENTS, context=st.integers(1, 12), ahead=st.integers(0, 11))
def test_every_token_is_scored_once_with_enough_context(
    lengths: list[int], context: int, ahead: int
) -> None:
    stride = 1 + ahead % context
    spans = spans_of(lengths)
    windows = cut(spans, context=context, stride=stride)
    found = targets_of(windows)
    expected = [place for first, end in spans.tolist() for place in range(first + 1, end)]
    assert sorted(place for place, _ in found) == expected
    begins = {place: first for first, end in spans.tolist() for place in range(first, end)}
    for place, read in found:
        assert read >= min(context - stride + 1, place - begins[place])
        assert read <= min(context, place - begins[place])


@given(lengths=DOCUMENTS, context=st.integers(1, 12), size=st.integers(1, 5))
def test_batches_hold_every_window_once_and_like_ones_together(
    lengths: list[int], context: int, size: int
) -> None:
    windows = cut(spans_of(lengths), context=context, stride=context)
    parts = batch(windows, size=size)
    assert sorted(np.concatenate([*parts, []]).tolist()) == list(range(len(windows)))
    assert all(len(part) <= size for part in parts)
    ordered = [int(windows.lengths[number]) for part in parts for number in part]
    assert ordered == sorted(ordered, reverse=True)
