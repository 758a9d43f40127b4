"""Filters keep what plain loops keep; draws have the frequencies of the softmax."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from qkvary.inference.requests import Request, Sampling
from qkvary.inference.sampling import (
    Sampler,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise,
)
from tests.conftest import examples
from tests.reference import sampling as loops

VALUES = st.floats(-30, 30, allow_nan=False).map(lambda value: round(value, 3))
ROWS = st.integers(1, 13).flatmap(
    lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=4)
)
NEAR = 1e-9


def column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def kept(filtered: Tensor, logits: Tensor) -> list[set[int]]:
    """What is not minus infinity, which must be what it was."""
    finite = torch.isfinite(filtered)
    assert torch.equal(filtered[finite], logits[finite])
    return [set(row.nonzero().flatten().tolist()) for row in finite]


@examples(100)
@given(rows=ROWS, data=st.data())
def test_filters_keep_what_the_loops_keep(rows: list[list[float]], data: st.DataObject) -> None:
    logits = torch.tensor(rows, dtype=torch.float64)
    counts = [data.draw(st.integers(1, 15)) for _ in rows]
    shares = [data.draw(st.floats(0.001, 1.0)) for _ in rows]
    found = kept(keep_top_k(logits, torch.tensor(counts)[:, None]), logits)
    assert found == [loops.top_k(row, count) for row, count in zip(rows, counts, strict=True)]
    for keep, loop in ((keep_top_p, loops.top_p), (keep_min_p, loops.min_p)):
        expected = [loop(row, share) for row, share in zip(rows, shares, strict=True)]
        # A share that rounding decides is no test.
        assume(all(near > NEAR for _, near in expected))
        assert kept(keep(logits, column(shares)), logits) == [tokens for tokens, _ in expected]


@given(rows=ROWS, penalty=st.floats(0.1, 10), data=st.data())
def test_penalties_are_those_of_the_loops(
    rows: list[list[float]], penalty: float, data: st.DataObject
) -> None:
    tokens = st.sets(st.integers(0, len(rows[0]) - 1))
    occurred = [data.draw(tokens) for _ in rows]
    mask = torch.tensor([[token in one for token in range(len(rows[0]))] for one in occurred])
    found = penalise(torch.tensor(rows, dtype=torch.float64), mask, column([penalty] * len(rows)))
    for row, tokens_there, result in zip(rows, occurred, found.tolist(), strict=True):
        assert result == pytest.approx(loops.penalised(row, tokens_there, penalty), rel=1e-12)


def request(seed: int = 0, prompt: tuple[int, ...] = (0,), **settings: object) -> Request:
    return Request(prompt=prompt, max_new_tokens=5, seed=seed, sampling=Sampling(**settings))  # type: ignore[arg-type]


LOGITS = torch.tensor([0.0, 1.0, -2.0, 1.5, 0.3, -0.7, 1.5], dtype=torch.float64)


def frequencies(logits: Tensor, count: int, **settings: object) -> Tensor:
    """How often each token is chosen, every draw a step of one request."""
    rows = [request(seed=row, **settings) for row in range(100)]
    sampler = Sampler(rows, len(logits))
    drawn = [sampler.choose(logits.expand(100, -1)) for _ in range(count // 100)]
    return torch.bincount(torch.cat(drawn), minlength=len(logits))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 3.0, "top_k": 4},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.0, "min_p": 0.3},
        {"temperature": 2.0, "top_k": 5, "top_p": 0.9, "min_p": 0.2},
    ],
)
@pytest.mark.parametrize("draws", [20_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_draws_have_the_frequencies_of_the_softmax(settings: dict[str, float], draws: int) -> None:
    temperature = settings["temperature"]
    scaled = [value / temperature for value in LOGITS.tolist()]
    tokens = loops.top_k(scaled, int(settings.get("top_k", 99)))
    left = [value if token in tokens else -math.inf for token, value in enumerate(scaled)]
    tokens &= loops.top_p(left, settings.get("top_p", 2.0))[0]
    left = [value if token in tokens else -math.inf for token, value in enumerate(scaled)]
    tokens &= loops.min_p(left, settings.get("min_p", 0.0))[0]
    left = [value if token in tokens else -math.inf for token, value in enumerate(scaled)]
    counts = frequencies(LOGITS, draws, **settings).tolist()
    expected = [draws * chance for chance in loops.probabilities(left)]
    assert {token for token, count in enumerate(counts) if count} <= tokens
    pairs = [(counts[token], expected[token]) for token in sorted(tokens)]
    found = stats.chisquare([a for a, _ in pairs], [b for _, b in pairs])
    assert found.pvalue > 1e-6


def test_every_request_has_its_own_random_stream() -> None:
    sampler = Sampler([request(seed=3, temperature=1.0)], 7)
    alone = [int(sampler.choose(LOGITS[None])) for _ in range(40)]
    others = [request(seed=9, temperature=2.0, top_k=2), request(seed=3, temperature=1.0)]
    both = Sampler(others, 7)
    assert [int(both.choose(LOGITS.expand(2, -1))[1]) for _ in range(40)] == alone
    again = Sampler([request(seed=4, temperature=1.0)], 7)
    assert [int(again.choose(LOGITS[None])) for _ in range(40)] != alone
    assert len(set(alone)) > 3


def test_tokens_that_occurred_are_penalised_the_prompt_included() -> None:
    sampler = Sampler([request(prompt=(3, 6), repetition_penalty=10.0)], 7)
    chosen = [int(sampler.choose(LOGITS[None])) for _ in range(4)]
    # 1.5 / 10 of the prompt's tokens is less than 0.3, and each chosen one becomes less as well.
    assert chosen == [1, 4, 3, 3]


def test_rows_without_filters_are_unchanged_by_other_rows() -> None:
    rows = [
        request(seed=1, temperature=1.0),
        request(seed=1, temperature=1.0, top_p=1e-6),
        request(seed=1, temperature=1.0, top_k=1),
        request(seed=1, temperature=1.0, min_p=1.0),
        request(),
    ]
    sampler = Sampler(rows, 7)
    chosen = [sampler.choose(LOGITS.expand(5, -1)).tolist() for _ in range(60)]
    assert len({row[0] for row in chosen}) == 7
    assert {row[1] for row in chosen} == {row[2] for row in chosen} == {3}
    assert {row[3] for row in chosen} == {3, 6}
    assert {row[4] for row in chosen} == {3}
