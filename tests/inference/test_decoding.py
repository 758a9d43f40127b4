"""Decoding with a cache, in chunks and in batches, gives the tokens of running the prefix again."""

import dataclasses
import gc
import itertools
import math
import string
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from qkvary.inference import decoding
from qkvary.inference.beams import search
from qkvary.inference.decoding import complete, stream
from qkvary.inference.requests import Completion, Event, Request, Sampling
from qkvary.inference.sampling import Sampler
from qkvary.inference.stepping import Stepper
from qkvary.nn.cache import KVCache
from qkvary.nn.decoder import Decoder
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DivergedError
from tests.conftest import examples
from tests.contracts.variant_cases import (
    DECISIVE,
    make_language_model_config,
    randomize,
)
from tests.inference.scripted import Scripted

VARIANTS = (
    *DECISIVE,
    "Q-K=V@rotary",
    "Q-GQA-2@rotary@w3",
    "QKV@w4",
    "Q=K-V@alibi",
    "Q-GQA-2@linear@decay-learned",
)
VOCABULARY, SPOKEN, MAX_TOKENS = 13, 11, 17


def make_model(label: str, positions: str = "learned") -> LanguageModel:
    model = LanguageModel(make_language_model_config(label, positions=positions)).double()
    randomize(model, seed=59)
    return model.eval()


MODEL = make_model("Q-K=V@rotary", "none")


def naive(model: LanguageModel, request: Request) -> tuple[list[int], list[float]]:
    """New tokens and their log-probabilities, the whole prefix run again for each."""
    tokens, logprobs = list(request.prompt), []
    sampler = Sampler([request], model.config.vocabulary)
    while len(tokens) - len(request.prompt) < request.max_new_tokens:
        with torch.no_grad():
            logits = model(torch.tensor([tokens]))[:, -1]
        token = int(sampler.choose(logits))
        if token in request.stop_tokens:
            break
        tokens.append(token)
        logprobs.append(float(torch.log_softmax(logits, dim=-1)[0, token]))
    return tokens[len(request.prompt) :], logprobs


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.none() | st.integers(1, 14),
    top_p=st.none() | st.floats(0.1, 1.0),
    min_p=st.none() | st.floats(0.0, 0.5),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Any request that fits the small models, in any batch: prompts and answers up to 8."""
    token = st.integers(0, VOCABULARY - 1)
    return Request(
        prompt=tuple(draw(st.lists(token, min_size=1, max_size=8))),
        max_new_tokens=draw(st.integers(0, 8)),
        sampling=draw(SAMPLINGS),
        stop_tokens=tuple(draw(st.sets(token, max_size=2))),
        seed=draw(st.integers(0, 5)),
        logprobs=True,
    )


@pytest.mark.parametrize("label", VARIANTS)
@examples(3)
@given(asked=st.lists(requests(), min_size=1, max_size=5), chunk=st.integers(1, 9))
def test_every_request_of_a_batch_gets_what_it_would_get_alone(
    label: str, asked: list[Request], chunk: int
) -> None:
    model = make_model(label)
    for request, answer in zip(asked, complete(model, asked, chunk=chunk), strict=True):
        tokens, logprobs = naive(model, request)
        assert list(answer.tokens) == tokens
        assert answer.finish == ("length" if len(tokens) == request.max_new_tokens else "end")
        assert answer.logprobs == (pytest.approx(logprobs, abs=1e-10) if tokens else None)


def test_rows_that_have_ended_leave_when_they_are_half(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    genuine = Stepper.__call__

    def count(self: Stepper, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        rows.append(tokens.shape[0])
        return genuine(self, tokens, mask)

    monkeypatch.setattr(Stepper, "__call__", count)
    ends = [2, 6, 3, 9, 3]
    asked = [Request(prompt=(1,) * (n + 1), max_new_tokens=end) for n, end in enumerate(ends)]
    assert [len(answer.tokens) for answer in complete(MODEL, asked)] == ends
    # Three of five have ended after three tokens, one of two after six.
    assert rows == [5, 5, 2, 2, 2, 1, 1, 1]


def answers(events: list[Event], count: int) -> list[str]:
    return ["".join(e.text for e in events if e.request == row) for row in range(count)]


def test_text_comes_in_whole_characters_and_ends_before_stop_strings() -> None:
    texts = ["né 😀!", "abSTOPcd", "abSTcd", "xÜber"]
    scripts = [list(text.encode()) for text in texts]
    asked = [
        Request(prompt=(65,), max_new_tokens=len(script), stop=("STOP", "b", "Ü")[:stops])
        for script, stops in zip(scripts, (1, 1, 1, 3), strict=True)
    ]
    model = Scripted(scripts)
    events = list(stream(model, asked, tokenizer=ByteTokenizer()))  # type: ignore[arg-type]
    assert answers(events, 4) == ["né 😀!", "ab", "abSTcd", "x"]
    ends = {event.request: event.finish for event in events if event.finish}
    assert ends == {0: "length", 1: "stop", 2: "length", 3: "stop"}
    assert all("\ufffd" not in event.text for event in events)
    # Six tokens to know the stop string, and none after it.
    assert sum(event.request == 1 for event in events) == 6
    assert [event.token for event in events if event.request == 3] == [120, 0xC3, 0x9C]


def test_a_stop_token_ends_a_text_without_being_part_of_it() -> None:
    asked = [Request(prompt=(1,), max_new_tokens=9, stop_tokens=(10,), stop=("!",))]
    model = Scripted([[0x61, 0xC3, 10, 0x62]])
    (answer,) = complete(model, asked, tokenizer=ByteTokenizer())  # type: ignore[arg-type]
    assert answer == Completion(tokens=(0x61, 0xC3), text="a\ufffd", logprobs=None, finish="end")


def test_requests_that_do_not_fit_are_rejected_before_computing() -> None:
    long = Request(prompt=(1,) * 10, max_new_tokens=1)
    many = Request(prompt=(1,), max_new_tokens=15)
    with pytest.raises(ValueError, match="expected requests that fit one batch of 17 tokens"):
        stream(MODEL, [long, many])
    assert [len(one.tokens) for one in complete(MODEL, [long, many])] == [1, 15]
    for request, message in (
        (Request(prompt=(13,), max_new_tokens=1), "expected tokens from 0 to 12, got 13"),
        (Request(prompt=(1,) * 18, max_new_tokens=0), "expected a prompt of at most 17 tokens"),
        (Request(prompt=(1,) * 9, max_new_tokens=10), "9 new tokens after a prompt of 9"),
    ):
        with pytest.raises(ValueError, match=message):
            stream(MODEL, [request])
    with pytest.raises(ValueError, match="expected a model in evaluation mode"):
        stream(make_model("QKV").train(), [long])
    assert complete(MODEL, []) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_end_the_text(value: float) -> None:
    model = make_model("QKV")
    model.head = lambda features: torch.full((*features.shape[:-1], 13), value)  # type: ignore[method-assign]
    events = stream(model, [Request(prompt=(1,), max_new_tokens=3)])
    with pytest.raises(DivergedError, match="logits that are not finite at step 0"):
        next(events)


def test_a_dropped_stream_leaves_no_state() -> None:
    caches: list[weakref.ref[KVCache]] = []

    def new_cache(max_tokens: int) -> KVCache:
        cache = KVCache(MODEL.config.layers, max_tokens=max_tokens)
        caches.append(weakref.ref(cache))
        return cache

    events = stream(MODEL, [Request(prompt=(1,), max_new_tokens=9)], new_cache=new_cache)
    assert len(list(itertools.islice(events, 3))) == 3
    assert not torch.is_inference_mode_enabled()
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt())  # type: ignore[attr-defined]
    del events
    gc.collect()
    assert [cache() for cache in caches] == [None]


def test_padding_rows_of_the_vocabulary_are_never_chosen() -> None:
    model = make_model("QKV")
    with torch.no_grad():
        # They would win at every step if they could.
        model.embedding[SPOKEN:] = 40.0 * model.embedding[:1].sign()
    tokenizer = CharacterTokenizer(string.ascii_lowercase[:SPOKEN])
    asked = [
        Request(prompt=(1, 2), max_new_tokens=9, seed=seed, sampling=Sampling(temperature=5.0))
        for seed in range(5)
    ]
    free = complete(model, asked)
    assert any(token >= SPOKEN for answer in free for token in answer.tokens)
    for answer in complete(model, asked, tokenizer=tokenizer):
        assert len(answer.text) == 9
        assert all(token < SPOKEN for token in answer.tokens)
    for beam in search(
        model, dataclasses.replace(asked[0], sampling=Sampling()), beams=3, tokenizer=tokenizer
    ):
        assert all(token < SPOKEN for token in beam.tokens)


@pytest.mark.parametrize(("few", "sampling_threads"), [(VOCABULARY, 1), (VOCABULARY - 1, 2)])
def test_few_logits_leave_the_processors_to_the_step(
    few: int, sampling_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[tuple[str, int]]()

    def note(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            found.append((what, torch.get_num_threads()))
            return function(*arguments)

        return call

    monkeypatch.setattr(decoding, "FEW_LOGITS", few)
    monkeypatch.setattr(Sampler, "choose", note("sample", Sampler.choose))
    monkeypatch.setattr(Stepper, "__call__", note("step", Stepper.__call__))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        complete(MODEL, [Request(prompt=(3,), max_new_tokens=2)])
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)
    assert found == [("sample", sampling_threads), ("step", 2), ("sample", sampling_threads)]
    assert after == 2


class Wrapped(nn.Module):
    """A user's network: it satisfies ``Decoder`` and inherits from none of ours."""

    def __init__(self, inner: LanguageModel) -> None:
        super().__init__()
        self.inner = inner
        self.config, self.features, self.head = inner.config, inner.features, inner.head
        self.token_losses = inner.token_losses

    def forward(self, tokens: Tensor, **given: Any) -> Tensor:
        return self.inner(tokens, **given)


def test_a_users_network_decodes() -> None:
    inner = make_model("Q-K=V")
    own = Wrapped(inner).eval()
    assert isinstance(own, Decoder)
    requests = [Request(prompt=(3, 1, 4), max_new_tokens=5)]
    (ours,), (theirs,) = complete(inner, requests), complete(own, requests)
    assert theirs.tokens == ours.tokens
