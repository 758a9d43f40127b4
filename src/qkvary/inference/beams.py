"""Beam search: the continuations of highest total probability, several at a time.

The beams are the rows of one cache, which is put in order after every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.decoding import (
    DEFAULT_CHUNK,
    CacheMaker,
    check_finite,
    count_spoken,
    make_cache,
    prefill,
)
from qkvary.inference.requests import Finish, Request
from qkvary.inference.stepping import Stepper
from qkvary.inference.streaming import find_stop, spell
from qkvary.nn.decoder import Decoder, device_of

MOST_PENALTY = 16
"""Power of a length up to which a score is a number, whatever the length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """One continuation."""

    tokens: tuple[int, ...]
    """New tokens, without the stop token."""
    logprob: float
    """Sum of the log-probabilities of its tokens, the stop token's included, in nats."""
    score: float
    """``logprob`` over the number of these tokens to the power of the length penalty."""
    text: str
    """Its text, without the stop string and what is behind it."""
    finish: Finish
    """Why it ends."""


@dataclass(frozen=True, slots=True)
class _Live:
    tokens: tuple[int, ...]
    logprob: float


def search(
    model: Decoder,
    request: Request,
    *,
    beams: int,
    length_penalty: float = 1.0,
    tokenizer: Tokenizer | None = None,
    chunk: int = DEFAULT_CHUNK,
    new_cache: CacheMaker | None = None,
) -> list[Beam]:
    """The best continuations that ``beams`` of them at a time find, best first.

    Ends when no beam can become better than those that have ended.

    Args:
        model: In evaluation mode.
        request: What is asked, greedy: beams draw no random numbers.
        beams: Continuations that are kept.
        length_penalty: Power of the length that a total is divided by; 0 compares totals.
        tokenizer: For text and stop strings.
        chunk: Tokens of the prompt that pass the network at once.
        new_cache: Makes the cache; by default as ``decoding.stream``.

    Raises:
        ValueError: if the request does not fit, or asks for sampling or a penalty, or the power is
            beyond reason.
        DivergedError: if the network gives logits that are not finite.
    """
    _check(model, request, beams, length_penalty, tokenizer)
    hunt = _Hunt(request, beams, length_penalty, tokenizer)
    spoken = count_spoken(model, tokenizer)
    if request.max_new_tokens == 0:
        return [hunt.end(_Live((), 0.0), "length", 1)]
    device = device_of(model)
    with torch.inference_mode():
        limit = len(request.prompt) + request.max_new_tokens - 1
        cache = make_cache(model, limit) if new_cache is None else new_cache(limit)
        prompt = torch.tensor([request.prompt], dtype=torch.long, device=device)
        logits = prefill(model, prompt, cache=cache, chunk=chunk)
        step = Stepper(model, cache)
        live = [_Live((), 0.0)]
        for number in range(request.max_new_tokens):
            check_finite(logits, number)
            grown = hunt.grow(live, torch.log_softmax(logits.double(), dim=-1)[:, :spoken].cpu())
            live = [beam for _, beam in grown]
            if number + 1 == request.max_new_tokens or hunt.is_over(live):
                break
            cache.reorder(torch.tensor([parent for parent, _ in grown], device=device))
            tokens = torch.tensor([beam.tokens[-1] for beam in live], device=device)
            logits = step(tokens)
    return hunt.best(live)


class _Hunt:
    """What has been found, and the rules by which it is compared."""

    def __init__(
        self, request: Request, beams: int, length_penalty: float, tokenizer: Tokenizer | None
    ) -> None:
        self.request, self.beams, self.length_penalty = request, beams, length_penalty
        self.tokenizer = tokenizer
        self.ended: list[Beam] = []

    def grow(self, live: Sequence[_Live], logprobs: torch.Tensor) -> list[tuple[int, _Live]]:
        """Continue every beam by every token and keep the best, each with its parent."""
        vocabulary = logprobs.shape[-1]
        totals = logprobs + torch.tensor([[beam.logprob] for beam in live], dtype=torch.float64)
        # So many that enough remain if all stop tokens are among them.
        most = min(totals.numel(), self.beams * (1 + len(set(self.request.stop_tokens))))
        order = totals.flatten().argsort(descending=True, stable=True)[:most].tolist()
        grown: list[tuple[int, _Live]] = []
        for place in order:
            parent, token = divmod(place, vocabulary)
            total = float(totals[parent, token])
            tokens = live[parent].tokens
            if token in self.request.stop_tokens:
                self.ended.append(self.end(_Live(tokens, total), "end", len(tokens) + 1))
                continue
            beam = _Live((*tokens, token), total)
            if self._is_stopped(beam):
                self.ended.append(self.end(beam, "stop", len(beam.tokens)))
                continue
            grown.append((parent, beam))
            if len(grown) == self.beams:
                break
        return grown

    def end(self, beam: _Live, finish: Finish, length: int) -> Beam:
        """A beam that goes no further."""
        text = self._spell(beam.tokens)
        cut = find_stop(text, self.request.stop)
        return Beam(
            tokens=beam.tokens,
            logprob=beam.logprob,
            score=self._score(beam.logprob, length),
            text=text if cut is None else text[:cut],
            finish=finish,
        )

    def is_over(self, live: Sequence[_Live]) -> bool:
        """Whether nothing that still grows can come among the best."""
        if not live:
            return True
        best = sorted((beam.score for beam in self.ended), reverse=True)[: self.beams]
        if len(best) < self.beams:
            return False
        # A total only falls; divided by a power of the length it is highest at one of the ends.
        lengths = (len(live[0].tokens) + 1, self.request.max_new_tokens)
        hope = max(self._score(beam.logprob, length) for beam in live for length in lengths)
        return hope <= best[-1]

    def best(self, live: Sequence[_Live]) -> list[Beam]:
        """The best of all, those that were cut off by the number of tokens included."""
        most = self.request.max_new_tokens
        cut = [self.end(beam, "length", most) for beam in live if len(beam.tokens) == most]
        found = sorted([*self.ended, *cut], key=lambda beam: -beam.score)
        return found[: self.beams]

    def _score(self, logprob: float, length: int) -> float:
        return logprob / length**self.length_penalty

    def _is_stopped(self, beam: _Live) -> bool:
        stop = self.request.stop
        return bool(stop) and find_stop(self._spell(beam.tokens), stop) is not None

    def _spell(self, tokens: Sequence[int]) -> str:
        if self.tokenizer is None:
            return ""
        return spell(self.tokenizer, tokens, after=self.request.prompt[-1])


def _check(
    model: Decoder,
    request: Request,
    beams: int,
    length_penalty: float,
    tokenizer: Tokenizer | None,
) -> None:
    if beams < 1:
        raise ValueError(f"expected at least 1 beam, got {beams}")
    if not abs(length_penalty) <= MOST_PENALTY:
        raise ValueError(
            f"expected a length penalty from -{MOST_PENALTY} to {MOST_PENALTY}, got "
            f"{length_penalty}"
        )
    if model.training:
        raise ValueError("expected a model in evaluation mode, got one that is training")
    if not request.sampling.is_greedy or request.sampling.repetition_penalty != 1:
        raise ValueError(
            "expected a greedy request without penalty for beams, got one that samples or "
            "penalises; choices: beams, or a temperature"
        )
    if request.stop and tokenizer is None:
        raise ValueError("expected a tokenizer for stop strings, got none")
    request.check(model.config.vocabulary, model.config.max_tokens)
