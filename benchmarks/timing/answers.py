"""One timed greedy answer, with a cache or by running the whole prefix again.

Knows what is timed. Does not know what it is compared with, nor how often it is repeated.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from qkvary.arch.caches import CacheOptions
from qkvary.inference.decoding import DEFAULT_CHUNK, make_cache, stream
from qkvary.inference.requests import Request
from qkvary.nn.cache import KVCache
from qkvary.nn.decoder import Decoder, device_of

Rows = tuple[tuple[int, ...], ...]
"""Tokens, a tuple for each row of a batch."""

STREAM_BYTES = 2**28
"""Bytes read to measure bandwidth: more than processor caches hold."""


class Clocks(NamedTuple):
    """A point in time, or a duration."""

    wall: float
    """Wall-clock seconds."""
    cpu: float
    """CPU seconds of this process over all threads."""

    @classmethod
    def now(cls) -> Self:
        """Return the current time."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: "Clocks") -> "Clocks":
        """Return the duration since another point in time."""
        return Clocks(self.wall - start.wall, self.cpu - start.cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAnswer:
    """An answer and its duration."""

    tokens: Rows
    """The new tokens of every row, or those at the timed steps."""
    first: Clocks
    """The time until every row had its first new token."""
    whole: Clocks
    """The time until every row had its last."""
    cache_bytes: int
    """The final size of the cache; 0 without a cache."""


def answer_with_cache(
    model: Decoder,
    prompts: Rows,
    new_tokens: int,
    *,
    options: CacheOptions,
    chunk: int = DEFAULT_CHUNK,
) -> TimedAnswer:
    """Answer greedily with ``decoding.stream``.

    Args:
        model: The network, in evaluation mode.
        prompts: Prompts of equal length.
        new_tokens: New tokens per row.
        options: The options of the cache.
        chunk: Prompt tokens per forward pass.
    """
    kept: list[KVCache] = []

    def keep_cache(tokens: int) -> KVCache:
        kept.append(KVCache(model.config.layers, max_tokens=tokens, options=options))
        return kept[-1]

    requests = [Request(prompt=prompt, max_new_tokens=new_tokens) for prompt in prompts]
    answers: list[list[int]] = [[] for _ in prompts]
    first: Clocks | None = None
    start = begin(device_of(model))
    for event in stream(model, requests, chunk=chunk, new_cache=keep_cache):
        answers[event.request].append(-1 if event.token is None else event.token)
        if first is None and event.request == len(prompts) - 1:
            first = Clocks.now()
    end = Clocks.now()
    return TimedAnswer(
        tokens=tuple(map(tuple, answers)),
        first=(first or end).since(start),
        whole=end.since(start),
        cache_bytes=kept[0].nbytes,
    )


def answer_without_cache(
    model: Decoder, prompts: Rows, answer: Rows, steps: Sequence[int]
) -> TimedAnswer:
    """Choose tokens greedily, running the whole prefix again for each of them.

    Args:
        model: The network, in evaluation mode.
        prompts: Prompts of equal length.
        answer: The tokens after the prompts, at least one per step.
        steps: The steps to time, beginning with 0, the first token.

    Returns:
        The tokens at ``steps``. Steps that were not timed count with the mean of those that were.
    """
    device = device_of(model)
    whole = torch.tensor(
        [(*prompt, *row) for prompt, row in zip(prompts, answer, strict=True)], device=device
    )
    length = len(prompts[0])
    chosen: list[list[int]] = []
    spans: list[Clocks] = []
    for step in steps:
        start = begin(device)
        with torch.inference_mode():
            features = model.features(whole[:, : length + step])
            # Only the logits of the last token are needed.
            chosen.append(model.head(features[:, -1]).argmax(dim=-1).tolist())
        spans.append(Clocks.now().since(start))
    rest = spans[1:]
    scale = (len(answer[0]) - 1) / max(1, len(rest))
    return TimedAnswer(
        tokens=tuple(zip(*chosen, strict=True)),
        first=spans[0],
        whole=Clocks(
            spans[0].wall + scale * math.fsum(span.wall for span in rest),
            spans[0].cpu + scale * math.fsum(span.cpu for span in rest),
        ),
        cache_bytes=0,
    )


def choose_steps(new_tokens: int, most: int) -> tuple[int, ...]:
    """Return all steps, or the first and the middles of ``most - 1`` equal parts of the others."""
    if new_tokens <= most:
        return tuple(range(new_tokens))
    parts = max(1, most - 1)
    width = (new_tokens - 1) / parts
    return (0, *(1 + int((part + 0.5) * width) for part in range(parts)))


def default_options(model: Decoder) -> CacheOptions:
    """Return the default cache options of a network."""
    return make_cache(model, 1).options


def draw_prompts(vocabulary: int, *, batch: int, length: int, seed: int) -> Rows:
    """Return prompts of uniformly drawn tokens."""
    generator = torch.Generator().manual_seed(seed)
    drawn: list[list[int]] = torch.randint(
        vocabulary, (batch, length), generator=generator
    ).tolist()
    return tuple(map(tuple, drawn))


def count_equal(one: Rows, other: Rows) -> int:
    """Return the number of tokens before the first difference of any row."""
    return min(
        next((place for place, pair in enumerate(pairs) if pair[0] != pair[1]), len(row))
        for row, pairs in (
            (row, list(zip(row, its, strict=True))) for row, its in zip(one, other, strict=True)
        )
    )


def measure_bandwidth(data: Tensor) -> float:
    """Return the bytes of a tensor read per second, by the faster of two sequential reads."""
    best = math.inf
    for read in (data.sum, lambda: torch.dot(data, data)):
        start = begin(data.device)
        float(read())
        best = min(best, Clocks.now().since(start).wall)
    return data.nbytes / best


def begin(device: torch.device) -> Clocks:
    """Wait until the device is idle and return the current time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Clocks.now()
