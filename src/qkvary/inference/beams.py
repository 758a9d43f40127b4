"""Beam search: keep the most probable continuations while decoding.

The beams are the rows of one cache, which is reordered after every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.decoding import (
    DEFAULT_CHUNK,
    CacheMaker,
    check_finite,
    check_requests,
    make_cache,
    one_thread_for,
    prefill,
    usable_vocabulary,
)
from qkvary.inference.requests import Finish, Request
from qkvary.inference.stepping import Stepper
from qkvary.inference.streaming import detokenize, find_stop
from qkvary.nn.decoder import Decoder, device_of

MOST_BEAMS = 1024
"""Maximum number of beams. More beams give no better text, and a step would take seconds."""
MAX_LENGTH_PENALTY = 16
"""The largest absolute length penalty, so that scores stay finite at every length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """One candidate continuation in beam search."""

    tokens: tuple[int, ...]
    """The new tokens, without the stop token."""
    logprob: float
    """The sum of the log-probabilities of the tokens, including the stop token, in nats."""
    score: float
    """``logprob / length ** length_penalty``, where the length includes the stop token."""
    text: str
    """The text before the stop string."""
    finish: Finish
    """The reason why the text ends."""


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
    """Return the ``beams`` best continuations, best first.

    The search stops when no live beam can overtake the finished beams. The score of a beam is its
    total log-probability divided by ``length ** length_penalty``. With a penalty of 0, the score is
    the total. The other arguments are those of ``decoding.stream``.

    Raises:
        ValueError: if the request does not fit the network, if the request samples or has a
            repetition penalty, or if ``length_penalty`` is out of range.
        DivergedError: if the network gives logits that are not finite.
    """
    if not 1 <= beams <= MOST_BEAMS:
        raise ValueError(f"expected from 1 to {MOST_BEAMS:,} beams, got {beams:,}")
    if not abs(length_penalty) <= MAX_LENGTH_PENALTY:
        raise ValueError(
            f"expected a length penalty from -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}, got "
            f"{length_penalty}"
        )
    if not request.sampling.is_greedy or request.sampling.repetition_penalty != 1:
        raise ValueError(
            "expected a greedy request without a repetition penalty for beam search, got one with "
            "sampling or a repetition penalty: leave out these options, or leave out the beams"
        )
    check_requests(model, [request], tokenizer)
    beam_search = _BeamSearch(request, beams, length_penalty, tokenizer)
    spoken = usable_vocabulary(model, tokenizer)
    if request.max_new_tokens == 0:
        return [beam_search.end(_Live((), 0.0), "length", 1)]
    device = device_of(model)
    with torch.inference_mode():
        limit = len(request.prompt) + request.max_new_tokens - 1
        cache = make_cache(model, limit) if new_cache is None else new_cache(limit)
        prompt = torch.tensor([request.prompt], dtype=torch.long, device=device)
        logits = prefill(model, prompt, cache=cache, chunk=chunk)
        step = Stepper(model, cache)
        live = [_Live((), 0.0)]
        for number in range(request.max_new_tokens):
            with one_thread_for(logits):
                check_finite(logits, number)
                grown = beam_search.grow(
                    live, torch.log_softmax(logits.double(), dim=-1)[:, :spoken].cpu()
                )
            live = [beam for _, beam in grown]
            if number + 1 == request.max_new_tokens or beam_search.is_over(live):
                break
            cache.reorder(torch.tensor([parent for parent, _ in grown], device=device))
            tokens = torch.tensor([beam.tokens[-1] for beam in live], device=device)
            logits = step(tokens)
    return beam_search.best(live)


class _BeamSearch:
    """Holds the finished beams and compares beams."""

    def __init__(
        self, request: Request, beams: int, length_penalty: float, tokenizer: Tokenizer | None
    ) -> None:
        self.request, self.beams, self.length_penalty = request, beams, length_penalty
        self.tokenizer = tokenizer
        self.ended: list[Beam] = []

    def grow(self, live: Sequence[_Live], logprobs: torch.Tensor) -> list[tuple[int, _Live]]:
        """Extend every beam by every token; return the best extensions, each with its parent."""
        vocabulary = logprobs.shape[-1]
        own = torch.tensor([[beam.logprob] for beam in live], dtype=torch.float64)
        totals = (logprobs + own).flatten()
        # Enough candidates to leave one per beam even if every stop token is among them.
        most = min(totals.numel(), self.beams * (1 + len(set(self.request.stop_tokens))))
        # A stable sort of the best candidates; sorting all takes longer than the network's step.
        best = (totals >= totals.topk(most).values[-1]).nonzero()[:, 0]
        order = best[totals[best].argsort(descending=True, stable=True)[:most]].tolist()
        stop, grown = self.request.stop, list[tuple[int, _Live]]()
        for place in order:
            parent, token = divmod(place, vocabulary)
            total = float(totals[place])
            tokens = live[parent].tokens
            if token in self.request.stop_tokens:
                self.ended.append(self.end(_Live(tokens, total), "end", len(tokens) + 1))
                continue
            beam = _Live((*tokens, token), total)
            if stop and find_stop(self._detokenize(beam.tokens), stop) is not None:
                self.ended.append(self.end(beam, "stop", len(beam.tokens)))
                continue
            grown.append((parent, beam))
            if len(grown) == self.beams:
                break
        return grown

    def end(self, beam: _Live, finish: Finish, length: int) -> Beam:
        """Return the finished beam of a live beam; ``length`` is the length for the score."""
        text = self._detokenize(beam.tokens)
        cut = find_stop(text, self.request.stop)
        return Beam(
            tokens=beam.tokens,
            logprob=beam.logprob,
            score=self._score(beam.logprob, length),
            text=text if cut is None else text[:cut],
            finish=finish,
        )

    def is_over(self, live: Sequence[_Live]) -> bool:
        """Return True if the search is over, because no live beam can become one of the best."""
        if not live:
            return True
        best = sorted((beam.score for beam in self.ended), reverse=True)[: self.beams]
        if len(best) < self.beams:
            return False
        # The sum of log-probabilities only falls, so the score is highest at the shortest or the
        # longest length.
        lengths = (len(live[0].tokens) + 1, self.request.max_new_tokens)
        hope = max(self._score(beam.logprob, length) for beam in live for length in lengths)
        return hope <= best[-1]

    def best(self, live: Sequence[_Live]) -> list[Beam]:
        """Return the best beams, both finished ones and those that reached the token limit."""
        most = self.request.max_new_tokens
        cut = [self.end(beam, "length", most) for beam in live if len(beam.tokens) == most]
        found = sorted([*self.ended, *cut], key=lambda beam: -beam.score)
        return found[: self.beams]

    def _score(self, logprob: float, length: int) -> float:
        return logprob / length**self.length_penalty

    def _detokenize(self, tokens: Sequence[int]) -> str:
        if self.tokenizer is None:
            return ""
        return detokenize(self.tokenizer, tokens, after=self.request.prompt[-1])
