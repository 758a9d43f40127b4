"""What is asked of a language model and what it answers, as values. Torch-free."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Finish = Literal["length", "stop", "end"]
"""Why a text ends: as many tokens as were asked for, a stop string, or a stop token."""
MOST_SEEDS = 2**63
LONGEST_STOP = 1024
MOST_STOPS = 64


def _check_number(name: str, value: float, *, low: float, high: float) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not good or not low <= value <= high or value == math.inf:
        most = f" to {high:g}" if high < math.inf else " and finite"
        raise ValueError(f"expected {name} from {low:g}{most}, got {value!r}")


def _check_whole(name: str, value: int, *, low: int, high: int) -> None:
    good = isinstance(value, int) and not isinstance(value, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
    if good and value > high:
        raise ValueError(f"expected at most {high} for {name}, got {value}")
    if not good or value < low:
        raise ValueError(f"expected a whole number of at least {low} for {name}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen, in this order: penalty, temperature, top-k, top-p, min-p."""

    temperature: float = 0.0
    """Logits are divided by it; 0 takes the most probable token."""
    top_k: int | None = None
    """Keep the k most probable tokens; of equal ones those with the lower number."""
    top_p: float | None = None
    """Keep the most probable tokens, as few as hold this share of the probability together."""
    min_p: float | None = None
    """Keep tokens that have at least this share of the probability of the most probable one."""
    repetition_penalty: float = 1.0
    """Divide positive logits of tokens that occurred, prompt included, and multiply negative ones.

    Source: Keskar et al. 2019, CTRL."""

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, low=0.0, high=math.inf)
        _check_number("repetition_penalty", self.repetition_penalty, low=0.0, high=math.inf)
        if self.repetition_penalty == 0:
            raise ValueError("expected a positive repetition_penalty, got 0")
        if self.top_k is not None:
            _check_whole("top_k", self.top_k, low=1, high=2**62)
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p)):
            if value is not None:
                _check_number(name, value, low=0.0, high=1.0)
        if self.top_p == 0:
            raise ValueError("expected top_p above 0, got 0; temperature 0 takes the most probable")

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is drawn."""
        return self.temperature == 0


GREEDY = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One text to be continued; its answer depends on nothing else in its batch."""

    prompt: tuple[int, ...]
    """Tokens to start from, at least one."""
    max_new_tokens: int
    """Tokens to add at most."""
    sampling: Sampling = GREEDY
    """How they are chosen."""
    stop: tuple[str, ...] = ()
    """End before the first of these in the new text, however tokens cut it."""
    stop_tokens: tuple[int, ...] = ()
    """End before the first of these tokens."""
    seed: int = 0
    """Of this request's own random numbers."""
    logprobs: bool = False
    """Say of every new token its log-probability under the model, before penalty and filters."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("expected a prompt of at least one token, got none")
        for token in (*self.prompt, *self.stop_tokens):
            _check_whole("a token", token, low=0, high=2**40)
        _check_whole("max_new_tokens", self.max_new_tokens, low=0, high=2**40)
        _check_whole("seed", self.seed, low=0, high=MOST_SEEDS - 1)
        if len(self.stop) > MOST_STOPS:
            raise ValueError(f"expected at most {MOST_STOPS} stop strings, got {len(self.stop)}")
        for text in self.stop:
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"expected stop strings, got {text!r}")  # noqa: TRY004  one kind
            if not 1 <= len(text) <= LONGEST_STOP:
                raise ValueError(
                    f"expected stop strings of 1 to {LONGEST_STOP} characters, got {len(text)}"
                )

    def check(self, vocabulary: int, max_tokens: int) -> None:
        """Refuse what a network of these sizes cannot do.

        Raises:
            ValueError: for tokens that it does not know, or more of them than it has places for.
        """
        strange = [token for token in self.prompt if token >= vocabulary]
        if strange:
            raise ValueError(f"expected tokens from 0 to {vocabulary - 1}, got {strange[0]}")
        # The last new token is never read, so that it needs no place.
        room = max_tokens + 1 - len(self.prompt)
        if room < 1:
            raise ValueError(
                f"expected a prompt of at most {max_tokens} tokens, got {len(self.prompt)}"
            )
        if self.max_new_tokens > room:
            raise ValueError(
                f"expected at most {room} new tokens behind {len(self.prompt)} of {max_tokens}, "
                f"got {self.max_new_tokens}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What one step adds to one request."""

    request: int
    """Which: its place among the requests."""
    token: int | None
    """The new token; ``None`` where a stop token ended the text, or none was asked for."""
    logprob: float | None
    """Its log-probability, where the request asks for it."""
    text: str
    """What can be shown now: whole characters that no stop string can take back."""
    finish: Finish | None
    """Why the text ends here, if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The whole answer to a request."""

    tokens: tuple[int, ...]
    """New tokens, without the stop token."""
    text: str
    """Their text, without the stop string and what is behind it."""
    logprobs: tuple[float, ...] | None
    """Of every new token, where the request asks for it."""
    finish: Finish
    """Why it ends."""


def collect(events: Sequence[Event]) -> Completion:
    """Put the events of one request together.

    Raises:
        ValueError: if they do not end.
    """
    finish = events[-1].finish if events else None
    if finish is None:
        raise ValueError("expected events up to the end of a text, got some before it")
    steps = [event for event in events if event.token is not None]
    known = [event.logprob for event in steps if event.logprob is not None]
    return Completion(
        tokens=tuple(event.token for event in steps if event.token is not None),
        text="".join(event.text for event in events),
        logprobs=tuple(known) if len(known) == len(steps) and known else None,
        finish=finish,
    )


def group_requests(requests: Sequence[Request], *, max_tokens: int, batch_size: int) -> list[range]:
    """Cut requests into batches that fit: a batch is as wide as its longest prompt and answer.

    Args:
        requests: In the order in which they are answered.
        max_tokens: The longest sequence of the network.
        batch_size: Requests in a batch at most.
    """
    _check_whole("batch_size", batch_size, low=1, high=2**40)
    groups: list[range] = []
    start = prompt = answer = 0
    for place, request in enumerate(requests):
        prompt = max(prompt, len(request.prompt))
        answer = max(answer, request.max_new_tokens)
        if place > start and (place - start == batch_size or prompt + answer - 1 > max_tokens):
            groups.append(range(start, place))
            start, prompt, answer = place, len(request.prompt), request.max_new_tokens
    return [*groups, range(start, len(requests))] if requests else []
