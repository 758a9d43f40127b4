"""Mistakes that decoding must not make, made on purpose: each is noticed by the tests beside."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from qkvary.inference import beams, decoding, sampling
from qkvary.inference.requests import Request, Sampling
from qkvary.inference.sampling import Sampler
from qkvary.inference.streaming import TextStream
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from tests.inference import test_beams, test_decoding, test_sampling, test_streaming

LABELS = ("QKV", "Q-K=V@rotary")
ASKED = [
    Request(
        prompt=tuple(range(1, length)),
        max_new_tokens=new,
        seed=length,
        logprobs=True,
        sampling=Sampling(temperature=heat, top_p=0.9, repetition_penalty=4.0),
    )
    for length, new, heat in ((3, 8, 0.0), (9, 3, 1.5), (2, 9, 0.8))
]


def batches_are_right(label: str) -> None:
    """The contract of ``test_decoding``, for one batch."""
    model = test_decoding.make_model(label)
    for request, answer in zip(ASKED, decoding.complete(model, ASKED, chunk=2), strict=True):
        tokens, logprobs = test_decoding.naive(model, request)
        assert list(answer.tokens) == tokens
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-10)


def beams_are_right() -> None:
    model = test_beams.make_model("QKV", vocabulary=11)
    request = Request(prompt=(4, 7), max_new_tokens=7)
    found = beams.search(model, request, beams=3, length_penalty=0.0)
    expected = test_beams.naive_beams(model, (4, 7), 7, 3)
    assert [beam.logprob for beam in found] == pytest.approx([total for _, total in expected])


def pad_right(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    rows = [list(prompt) + [0] * (width - len(prompt)) for prompt in prompts]
    mask = [[place < len(prompt) for place in range(width)] for prompt in prompts]
    return torch.tensor(rows, device=device), torch.tensor(mask, device=device)


def pad_without_mask(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    return decoding_pad_left(prompts, device)[0], None


def last_chunk_only(
    model: LanguageModel, tokens: Tensor, *, cache: KVCache, chunk: int, **_call: object
) -> Tensor:
    return model(tokens[:, -chunk:], cache=cache)[:, -1]


def shared_numbers(self: Sampler, requests: Sequence[Request], *rest: object) -> None:
    sampler_init(self, requests, *rest)  # type: ignore[arg-type]
    one = torch.Generator().manual_seed(0)
    self._generators = [None if made is None else one for made in self._generators]


def filter_before_heat(logits: Tensor, temperature: Tensor) -> Tensor:
    return logits * temperature


def forget_prompt(self: Sampler, requests: Sequence[Request], *rest: object) -> None:
    sampler_init(self, requests, *rest)  # type: ignore[arg-type]
    if self._occurred is not None:
        self._occurred.zero_()


decoding_pad_left = decoding.pad_left
sampler_init = Sampler.__init__


MUTANTS: dict[str, tuple[object, str, object]] = {
    "padded on the right": (decoding, "pad_left", pad_right),
    "padding is seen": (decoding, "pad_left", pad_without_mask),
    "only the last chunk is read": (decoding, "prefill", last_chunk_only),
    "neighbours share random numbers": (Sampler, "__init__", shared_numbers),
    "logits times the temperature": (sampling, "divide_by_temperature", filter_before_heat),
    "the prompt is not penalised": (Sampler, "__init__", forget_prompt),
}


def test_without_a_mistake_everything_is_right() -> None:
    for label in LABELS:
        batches_are_right(label)
    beams_are_right()


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_in_a_batch_is_noticed(
    name: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, mutant = MUTANTS[name]
    model = test_decoding.make_model(label)
    # What is compared with must not have the same mistake.
    right = {request.seed: test_decoding.naive(model, request) for request in ASKED}
    monkeypatch.setattr(test_decoding, "naive", lambda _, request: right[request.seed])
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        batches_are_right(label)


def test_beams_that_keep_their_old_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    reorder = KVCache.reorder

    def only_grow(self: KVCache, rows: Tensor) -> None:
        reorder(self, torch.arange(len(rows)) if rows.any() else rows)

    monkeypatch.setattr(KVCache, "reorder", only_grow)
    with pytest.raises((AssertionError, IndexError)):
        beams_are_right()


def test_a_top_p_that_misses_its_last_token_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_few(logits: Tensor, share: Tensor) -> Tensor:
        return sampling.keep_top_p(logits, share * 0.8)

    monkeypatch.setattr(test_sampling, "keep_top_p", too_few)
    with pytest.raises(AssertionError):
        test_sampling.test_filters_keep_what_the_loops_keep()


def test_text_that_is_shown_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Eager(TextStream):
        def feed(self, data: bytes) -> str:
            return data.decode("utf-8", "replace")

    monkeypatch.setattr(test_streaming, "TextStream", Eager)
    for check in (
        test_streaming.test_no_character_is_shown_before_it_is_whole,
        test_streaming.test_stop_strings_do_not_depend_on_the_cuts,
        test_streaming.test_any_bytes_in_any_pieces_are_the_text_in_one,
    ):
        with pytest.raises(AssertionError):
            check()
