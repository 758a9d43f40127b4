"""Samples tokens from logits: penalty, temperature, filters, and one draw per request.

Every row has its own settings and one uniform number per token, so that an answer depends neither
on the rest of the batch nor on the device. All steps are computed in float64.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.inference.requests import Request

Logits = Float[Tensor, "rows vocabulary"]
PerRow = Float[Tensor, "rows 1"]


def penalise(logits: Logits, occurred: Bool[Tensor, "rows vocabulary"], penalty: PerRow) -> Logits:
    """Lower the logits of tokens that have occurred.

    Positive logits are divided by the penalty, and negative logits are multiplied by it.
    """
    changed = torch.where(logits > 0, logits / penalty, logits * penalty).nan_to_num()
    return torch.where(occurred, changed, logits)


def divide_by_temperature(logits: Logits, temperature: PerRow) -> Logits:
    """Shift the largest logit to 0, so that nothing overflows, and divide by the temperature."""
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def keep_top_k(logits: Logits, count: Int[Tensor, "rows 1"]) -> Logits:
    """Keep the ``count`` tokens with the highest logits; a count of 0 keeps all tokens.

    Among tokens with equal logits, the first are kept.
    """
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


FILTERS: dict[str, Callable[[Logits, Tensor], Logits]] = {
    "top_k": keep_top_k,
    "top_p": keep_top_p,
    "min_p": keep_min_p,
}
KEEPS_ALL = {"top_k": 0, "top_p": 2.0, "min_p": 0.0}
"""For each filter, the setting that switches it off, so that all tokens are kept."""


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
        self._all_greedy = all(one.is_greedy for one in settings)
        # Settings and past tokens, one row per request.
        self._rows = {
            "greedy": self._column([one.is_greedy for one in settings], torch.bool),
            "temperature": self._column([one.divisor or 1.0 for one in settings]),
        }
        filters: dict[str, list[float]] = {
            "top_k": [one.top_k or 0 for one in settings],
            "top_p": [
                2.0 if one.top_p is None or one.top_p == 1 else one.top_p for one in settings
            ],
            "min_p": [one.min_p or 0.0 for one in settings],
        }
        for name, values in filters.items():
            if set(values) - {KEEPS_ALL[name]}:
                kind = torch.int64 if name == "top_k" else torch.float64
                self._rows[name] = self._column(values, kind)
        penalties = [one.repetition_penalty for one in settings]
        if set(penalties) - {1.0}:
            occurred = torch.zeros(len(requests), vocabulary, dtype=torch.bool)
            for row, request in enumerate(requests):
                occurred[row, list(request.prompt)] = True
            self._rows |= {"penalty": self._column(penalties), "occurred": occurred.to(device)}

    def keep(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep some of the rows with their settings and random numbers."""
        self._generators = [self._generators[row] for row in rows.tolist()]
        self._all_greedy = all(one is None for one in self._generators)
        self._rows = {name: column[rows] for name, column in self._rows.items()}

    def choose(self, logits: Logits) -> Int[Tensor, " rows"]:
        """Return the next token of every row."""
        occurred = self._rows.get("occurred")
        if occurred is None and self._all_greedy:
            return logits.argmax(dim=-1)
        logits = logits.double()
        if occurred is not None:
            logits = penalise(logits, occurred, self._rows["penalty"])
        tokens = logits.argmax(dim=-1)
        if not self._all_greedy:
            tokens = torch.where(self._rows["greedy"][:, 0], tokens, self._draw(logits))
        if occurred is not None:
            occurred.scatter_(-1, tokens[:, None], torch.ones_like(tokens[:, None]).bool())
        return tokens

    def _draw(self, logits: Tensor) -> Tensor:
        logits = divide_by_temperature(logits, self._rows["temperature"])
        for name, keep in FILTERS.items():
            if name in self._rows:
                logits = keep(logits, self._rows[name])
        uniform = [
            0.0 if one is None else float(torch.rand((), dtype=torch.float64, generator=one))
            for one in self._generators
        ]
        return draw(logits, self._column(uniform))

    def _column(self, values: Sequence[float], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)[:, None]


def log_probabilities(logits: Logits, tokens: Int[Tensor, " rows"]) -> list[float]:
    """Return the log-probability of one token per row, in nats."""
    every = torch.log_softmax(logits.double(), dim=-1)
    return every.gather(-1, tokens[:, None])[:, 0].tolist()
