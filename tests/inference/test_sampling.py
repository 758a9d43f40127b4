"""Filters keep what those of transformers keep; draws have the frequencies of the softmax."""

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from qkvary.inference.requests import Request, Sampling
from qkvary.inference.sampling import Sampler, keep_min_p, keep_top_k, keep_top_p, penalise
from tests.conftest import examples

VALUES = st.floats(-30, 30, allow_nan=False).map(lambda value: round(value, 3))
ROWS = st.integers(1, 13).flatmap(
    lambda width: st.lists(
        st.lists(VALUES, min_size=width, max_size=width, unique=True), min_size=1, max_size=4
    )
)


NO_TOKENS: Any = torch.zeros(1, 0, dtype=torch.long)
WARPERS: dict[str, Any] = {
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}


def column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def kept(filtered: Tensor, logits: Tensor) -> list[set[int]]:
    """What is not minus infinity, which must be what it was."""
    finite = torch.isfinite(filtered)
    assert torch.equal(filtered[finite], logits[finite])
    return [set(row.nonzero().flatten().tolist()) for row in finite]


def is_decided(logits: Tensor, share: float) -> bool:
    """Whether no share of top-p or min-p is decided by rounding."""
    chances = logits.softmax(dim=-1).sort(descending=True).values
    limits = torch.stack((chances.cumsum(dim=-1) - share, chances - share * chances[:1]))
    return bool((limits[:, 1:].abs() > 1e-9).all() and (limits[0].abs() > 1e-9).all())


@examples(50)
@given(rows=ROWS, data=st.data())
def test_filters_keep_what_transformers_keeps(rows: list[list[float]], data: st.DataObject) -> None:
    logits = torch.tensor(rows, dtype=torch.float64)
    counts = [data.draw(st.integers(1, 15)) for _ in rows]
    shares = [data.draw(st.floats(0.001, 0.999)) for _ in rows]
    assume(all(map(is_decided, logits, shares)))
    for keep, given_there, warper in (
        (keep_top_k, torch.tensor(counts)[:, None], WARPERS["top_k"]),
        (keep_top_p, column(shares), WARPERS["top_p"]),
        (keep_min_p, column(shares), WARPERS["min_p"]),
    ):
        settings = counts if keep is keep_top_k else shares
        expected = [
            warper(setting)(NO_TOKENS, row[None])
            for setting, row in zip(settings, logits, strict=True)
        ]
        assert kept(keep(logits, given_there), logits) == kept(torch.cat(expected), logits)


def test_of_equal_tokens_the_first_is_kept() -> None:
    logits = torch.zeros(1, 4, dtype=torch.float64)
    assert kept(keep_top_k(logits, torch.tensor([[2]])), logits) == [{0, 1}]
    assert kept(keep_top_p(logits, column([0.6])), logits) == [{0, 1, 2}]
    many = torch.zeros(1, 40, dtype=torch.float64)
    assert kept(keep_top_p(many, column([0.61])), many) == [{*range(25)}]


@given(rows=ROWS, penalty=st.floats(0.1, 10), data=st.data())
def test_penalties_are_those_of_transformers(
    rows: list[list[float]], penalty: float, data: st.DataObject
) -> None:
    logits, width = torch.tensor(rows, dtype=torch.float64), len(rows[0])
    occurred = [data.draw(st.sets(st.integers(0, width - 1), min_size=1)) for _ in rows]
    mask = torch.tensor([[token in one for token in range(width)] for one in occurred])
    found = penalise(logits, mask, column([penalty] * len(rows)))
    processor: Any = RepetitionPenaltyLogitsProcessor(penalty)
    for row, tokens, result in zip(logits, occurred, found, strict=True):
        expected = processor(torch.tensor([sorted(tokens)]), row[None].clone())
        assert torch.equal(result, expected[0])


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
def test_draws_have_the_frequencies_of_the_softmax(settings: dict[str, float]) -> None:
    draws, left = 20_000, LOGITS[None] / settings["temperature"]
    for name, warper in WARPERS.items():
        if name in settings:
            left = warper(settings[name])(NO_TOKENS, left)
    counts = frequencies(LOGITS, draws, **settings).tolist()
    expected = (draws * left[0].softmax(dim=-1)).tolist()
    pairs = [(a, b) for a, b in zip(counts, expected, strict=True) if b]
    assert sum(a for a, _ in pairs) == draws
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
