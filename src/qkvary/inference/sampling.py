"""Sampling of tokens from logits: penalty, temperature, filters, and one draw per request.

Every row has its own settings and one uniform number per token, so that an answer depends neither
on the rest of the batch nor on the device. Computed in float64.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.inference.requests import Request

Logits = Float[Tensor, "rows vocabulary"]
PerRow = Float[Tensor, "rows 1"]


def penalise(logits: Logits, occurred: Bool[Tensor, "rows vocabulary"], penalty: PerRow) -> Logits:
    """Lower the logits of tokens that occurred: divide positive ones and multiply negative ones."""
    changed = torch.where(logits > 0, logits / penalty, logits * penalty).nan_to_num()
    return torch.where(occurred, changed, logits)


def divide_by_temperature(logits: Logits, temperature: PerRow) -> Logits:
    """Shift the largest logit to 0, so that nothing overflows, and divide by the temperature."""
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def keep_top_k(logits: Logits, count: Int[Tensor, "rows 1"]) -> Logits:
    """Keep the ``count`` tokens with the highest logits, of equal ones the first; 0 keeps all."""
    keeps_all, count = count == 0, count.clamp(1, logits.shape[-1])
    last = logits.topk(int(count.max()), dim=-1).values.gather(-1, count - 1)
    higher, equal = logits > last, logits == last
    left = count - higher.sum(dim=-1, keepdim=True)
    kept = keeps_all | higher | (equal & (equal.cumsum(dim=-1) <= left))
    return logits.masked_fill(~kept, -math.inf)


def keep_top_p(logits: Logits, share: PerRow) -> Logits:
    """Keep the fewest most probable tokens whose probabilities sum to at least ``share``.

    Of equally probable tokens, the first are kept. A share above 1 keeps all tokens.
    """
    probabilities = torch.softmax(logits, dim=-1)
    # Only likely tokens are sorted: all others together hold less than 1 - share.
    keeps_all = share > 1
    is_likely = (probabilities > (1 - share) / (2 * logits.shape[-1])) & ~keeps_all
    likely = is_likely.any(dim=0).nonzero()[:, 0]
    order = likely[logits[:, likely].argsort(dim=-1, descending=True, stable=True)]
    mass = probabilities.gather(-1, order).cumsum(dim=-1)
    # Not "mass - probability", which rounds.
    before = torch.cat((torch.zeros_like(mass[:, :1]), mass[:, :-1]), dim=-1)
    kept = torch.zeros_like(is_likely).scatter(-1, order, before < share)
    return logits.masked_fill(~(kept | keeps_all), -math.inf)


def keep_min_p(logits: Logits, share: PerRow) -> Logits:
    """Keep tokens with at least ``share`` of the highest probability."""
    probabilities = torch.softmax(logits, dim=-1)
    low = probabilities < share * probabilities.amax(dim=-1, keepdim=True)
    return logits.masked_fill(low, -math.inf)


def draw(logits: Logits, uniform: PerRow) -> Int[Tensor, " rows"]:
    """Return the token at which the cumulative probability exceeds a uniform number in [0, 1)."""
    mass = torch.softmax(logits, dim=-1).cumsum(dim=-1)
    total = mass[:, -1:]
    # If the number were rounded up to the total, it would select a position after the last token.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(mass, target, right=True)[:, 0]


class Sampler:
    """Chooses the next tokens of a batch, one request per row."""

    def __init__(
        self, requests: Sequence[Request], vocabulary: int, device: torch.device | None = None
    ) -> None:
        settings = [request.sampling for request in requests]
        self._generators = [
            None if request.sampling.is_greedy else torch.Generator().manual_seed(request.seed)
            for request in requests
        ]
        self._device = device
        self._greedy = torch.tensor([[one.is_greedy] for one in settings], device=device)
        self._all_greedy = all(one.is_greedy for one in settings)
        self._temperature = self._column([one.temperature or 1.0 for one in settings])
        self._top_k = self._optional([one.top_k for one in settings], 0, torch.int64)
        # A share of 1 keeps every token, which rounding might prevent.
        shares = [None if one.top_p == 1 else one.top_p for one in settings]
        self._top_p = self._optional(shares, 2.0)
        self._min_p = self._optional([one.min_p or None for one in settings], 0.0)
        penalties = [one.repetition_penalty for one in settings]
        self._penalty = None if set(penalties) <= {1.0} else self._column(penalties)
        self._occurred: Tensor | None = None
        if self._penalty is not None:
            self._occurred = torch.zeros(len(requests), vocabulary, dtype=torch.bool)
            for row, request in enumerate(requests):
                self._occurred[row, list(request.prompt)] = True
            self._occurred = self._occurred.to(device)

    def keep(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep some of the rows with their settings and random numbers."""
        self._generators = [self._generators[row] for row in rows.tolist()]
        self._greedy, self._temperature = self._greedy[rows], self._temperature[rows]
        self._all_greedy = all(one is None for one in self._generators)

        def some(column: Tensor | None) -> Tensor | None:
            return None if column is None else column[rows]

        self._top_k, self._top_p = some(self._top_k), some(self._top_p)
        self._min_p, self._penalty = some(self._min_p), some(self._penalty)
        self._occurred = some(self._occurred)

    def choose(self, logits: Logits) -> Int[Tensor, " rows"]:
        """Return the next token of every row."""
        if self._penalty is None and self._all_greedy:
            return logits.argmax(dim=-1)
        logits = logits.double()
        if self._penalty is not None and self._occurred is not None:
            logits = penalise(logits, self._occurred, self._penalty)
        tokens = logits.argmax(dim=-1)
        if not self._all_greedy:
            tokens = torch.where(self._greedy[:, 0], tokens, self._draw(logits))
        if self._occurred is not None:
            self._occurred.scatter_(-1, tokens[:, None], torch.ones_like(tokens[:, None]).bool())
        return tokens

    def _draw(self, logits: Tensor) -> Tensor:
        logits = divide_by_temperature(logits, self._temperature)
        if self._top_k is not None:
            logits = keep_top_k(logits, self._top_k)
        if self._top_p is not None:
            logits = keep_top_p(logits, self._top_p)
        if self._min_p is not None:
            logits = keep_min_p(logits, self._min_p)
        uniform = [
            0.0 if one is None else float(torch.rand((), dtype=torch.float64, generator=one))
            for one in self._generators
        ]
        return draw(logits, self._column(uniform))

    def _column(self, values: Sequence[float | int], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)[:, None]

    def _optional(
        self, values: Sequence[float | None], neutral: float, dtype: torch.dtype = torch.float64
    ) -> Tensor | None:
        if all(value is None for value in values):
            return None
        return self._column([neutral if value is None else value for value in values], dtype)


def log_probabilities(logits: Logits, tokens: Int[Tensor, " rows"]) -> list[float]:
    """Return the log-probability of one token per row, in nats."""
    every = torch.log_softmax(logits.double(), dim=-1)
    return every.gather(-1, tokens[:, None])[:, 0].tolist()
