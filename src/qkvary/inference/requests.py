"""Requests to a language model and its answers, as plain data. Never imports torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.errors import UsageError
from qkvary.text.numbers import check_number, check_seed, check_whole

Finish = Literal["length", "stop", "end"]
"""The reason why a text ends: the limit of new tokens, a stop string, or a stop token."""
DEFAULT_TOKENS = 256
"""The default number of new tokens, if the network has positions for them."""
MAX_STOP_LENGTH = 1024
MAX_STOPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of sampling, applied in this order: penalty, temperature, top-k, top-p, min-p."""

    temperature: float | None = None
    """Divisor of the logits; 0 takes the most probable token. The default is 1 with --top-k,
    --top-p or --min-p, and otherwise 0."""
    top_k: int | None = None
    """Sample from the k most probable tokens; among equal ones, those with the lowest indices."""
    top_p: float | None = None
    """Sample from the fewest tokens whose probabilities add up to this."""
    min_p: float | None = None
    """Drop tokens less probable than this share of the highest probability."""
    repetition_penalty: float = 1.0
    """Penalty for tokens that occurred before, also in the prompt: positive logits are divided by
    it, negative ones multiplied; 1 for none. Source: Keskar et al. 2019, CTRL."""

    def __post_init__(self) -> None:
        check_number("temperature", self.divisor, low=0.0, high=math.inf)
        check_number("repetition_penalty", self.repetition_penalty, low=0.0, high=math.inf)
        if self.repetition_penalty == 0:
            raise ValueError("expected a positive repetition_penalty, got 0")
        if self.top_k is not None:
            check_whole("top_k", self.top_k, low=1, high=2**62)
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p)):
            if value is not None:
                check_number(name, value, low=0.0, high=1.0)
        if self.top_p == 0:
            raise ValueError("expected top_p above 0, got 0; for the top token use temperature 0")

    @property
    def divisor(self) -> float:
        """The temperature, or its default."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.top_k is self.top_p is self.min_p is None else 1.0

    @property
    def is_greedy(self) -> bool:
        """Whether the next token is always the most probable one, because the temperature is 0."""
        return self.divisor == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One text to continue; the answer does not depend on the rest of the batch."""

    prompt: tuple[int, ...]
    """The tokens of the prompt, at least one."""
    max_new_tokens: int
    """The maximum number of new tokens to generate."""
    sampling: Sampling = field(default_factory=Sampling)
    """The settings of sampling."""
    stop: tuple[str, ...] = ()
    """Stop strings: the new text ends before the first one, even if it spans several tokens."""
    stop_tokens: tuple[int, ...] = ()
    """Stop tokens: the text ends before the first of them."""
    seed: int = 0
    """The seed of this request's random numbers."""
    logprobs: bool = False
    """Whether events have the log-probability of each new token, before penalty and filters."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("expected a prompt of at least one token, got none")
        for token in (*self.prompt, *self.stop_tokens):
            check_whole("a token", token, low=0, high=2**40)
        check_whole("max_new_tokens", self.max_new_tokens, low=0, high=2**40)
        check_seed(self.seed)
        if len(self.stop) > MAX_STOPS:
            raise ValueError(f"expected at most {MAX_STOPS} stop strings, got {len(self.stop)}")
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_LENGTH:
                raise ValueError(
                    f"expected stop strings of 1 to {MAX_STOP_LENGTH} characters, got {len(text)}"
                )

    def check(self, vocabulary: int, max_tokens: int) -> None:
        """Check that a network of these sizes can decode the request.

        Raises:
            ValueError: if a token is not in the vocabulary, or the sequence is too long.
        """
        strange = [token for token in self.prompt if token >= vocabulary]
        if strange:
            raise ValueError(f"expected tokens from 0 to {vocabulary - 1}, got {strange[0]}")
        # The last new token is never fed to the network, so it needs no position.
        room = max_tokens + 1 - len(self.prompt)
        if room < 1:
            raise ValueError(
                f"expected a prompt of at most {max_tokens} tokens, got {len(self.prompt)}"
            )
        if self.max_new_tokens > room:
            raise ValueError(
                f"expected at most {room} new tokens after a prompt of {len(self.prompt)}, got "
                f"{self.max_new_tokens}; the network reads at most {max_tokens} tokens, and does "
                "not read the last new token"
            )


def encode_prompt(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the tokens of a prompt. An empty text gives the separator."""
    tokens = tuple(tokenizer.encode(text))
    if not tokens and tokenizer.separator is not None:
        # In training, each document follows the separator of the previous one.
        tokens = (tokenizer.separator,)
    if not tokens:
        raise UsageError(
            "expected a prompt, got none; this model has no token to begin a text with"
        )
    return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The result of one step for one request."""

    request: int
    """The index of the request."""
    token: int | None
    """The new token; ``None`` if a stop token ended the text, or no token was requested."""
    logprob: float | None
    """The log-probability of the token, if requested."""
    text: str
    """The text that can be shown now: complete characters that no stop string can remove."""
    finish: Finish | None
    """The reason why the text ends with this event; ``None`` if the text continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The whole answer to a request."""

    tokens: tuple[int, ...]
    """The new tokens, without the stop token."""
    text: str
    """The text before the stop string."""
    logprobs: tuple[float, ...] | None
    """The log-probability of every new token, if requested."""
    finish: Finish
    """The reason why the text ends."""


def collect(events: Sequence[Event]) -> Completion:
    """Return the whole answer, joined from the events of one request.

    Raises:
        ValueError: if the last event does not end the text.
    """
    finish = events[-1].finish if events else None
    if finish is None:
        raise ValueError("expected events that end a text, got an unfinished text")
    known = tuple(event.logprob for event in events if event.logprob is not None)
    return Completion(
        tokens=tuple(event.token for event in events if event.token is not None),
        text="".join(event.text for event in events),
        logprobs=known or None,
        finish=finish,
    )


def group_requests(requests: Sequence[Request], *, max_tokens: int, batch_size: int) -> list[range]:
    """Split requests into batches whose longest prompt plus longest answer fit ``max_tokens``."""
    check_whole("batch_size", batch_size, low=1, high=2**40)
    groups: list[range] = []
    start = prompt = answer = 0
    for place, request in enumerate(requests):
        prompt = max(prompt, len(request.prompt))
        answer = max(answer, request.max_new_tokens)
        if place > start and (place - start == batch_size or prompt + answer - 1 > max_tokens):
            groups.append(range(start, place))
            start, prompt, answer = place, len(request.prompt), request.max_new_tokens
    return [*groups, range(start, len(requests))] if requests else []
