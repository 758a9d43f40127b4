"""A wide enough beam search finds what an exhaustive search finds."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.inference.beams import search
from qkvary.inference.requests import Request, Sampling
from qkvary.nn.language_model import LanguageModel
from tests.conftest import examples
from tests.contracts.variant_cases import make_language_model_config, randomize
from tests.pairwise import pairwise

TINY = 4


def make_model(label: str, vocabulary: int = TINY, seed: int = 61) -> LanguageModel:
    config = make_language_model_config(label, positions="learned")
    model = LanguageModel(dataclasses.replace(config, vocabulary=vocabulary)).double()
    randomize(model, seed=seed)
    return model.eval()


Found = tuple[tuple[int, ...], float]


def exhaustive(
    model: LanguageModel, prompt: tuple[int, ...], steps: int, stop: set[int], power: float
) -> list[Found]:
    """Every continuation that ends in a stop token or is full, with its score, best first."""
    found: dict[tuple[int, ...], float] = {}
    continuations = list(itertools.product(range(model.config.vocabulary), repeat=steps))
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens[:-1]] for tokens in continuations]))
    scores = torch.log_softmax(logits[:, len(prompt) - 1 :], dim=-1)
    for tokens, every in zip(continuations, scores.tolist(), strict=True):
        total = 0.0
        for place, token in enumerate(tokens):
            total += every[place][token]
            if token in stop:
                found[tokens[: place + 1]] = total / (place + 1) ** power
                break
        else:
            found[tokens] = total / steps**power
    trimmed = [
        (tuple(t for t in tokens if t not in stop), score) for tokens, score in found.items()
    ]
    return sorted(trimmed, key=lambda pair: -pair[1])


WIDE = ["QKV", "Q-MQA", "Q-K=V@w3", "Q=K-V@relative"]
POWERS = [0.0, 1.0, 0.6]


@pairwise("label, power, stop", itertools.product(WIDE, POWERS, [(), (2,)]))
def test_a_wide_beam_is_an_exhaustive_search(
    label: str, power: float, stop: tuple[int, ...]
) -> None:
    model = make_model(label)
    request = Request(prompt=(1, 3), max_new_tokens=4, stop_tokens=stop)
    found = search(model, request, beams=TINY**4, length_penalty=power)
    expected = exhaustive(model, (1, 3), 4, set(stop), power)
    assert [beam.tokens for beam in found] == [tokens for tokens, _ in expected]
    assert [beam.score for beam in found] == pytest.approx([score for _, score in expected])


def naive_beams(
    model: LanguageModel, prompt: tuple[int, ...], steps: int, beams: int
) -> list[Found]:
    """Beam search without stop tokens or cache: all continuations, the best kept."""
    live: list[Found] = [((), 0.0)]
    for _ in range(steps):
        grown: list[Found] = []
        for tokens, total in live:
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *tokens]]))[0, -1]
            every = torch.log_softmax(logits, dim=-1).tolist()
            grown += [((*tokens, token), total + value) for token, value in enumerate(every)]
        live = sorted(grown, key=lambda pair: -pair[1])[:beams]
    return live


@examples(12)
@given(
    prompt=st.lists(st.integers(0, 10), min_size=1, max_size=6),
    steps=st.integers(1, 7),
    beams=st.integers(1, 5),
    label=st.sampled_from(["QKV", "Q-K=V@rotary", "Q-GQA-2", "QKV@w2"]),
    chunk=st.integers(1, 4),
)
def test_a_narrow_beam_is_the_same_without_a_cache(
    prompt: list[int], steps: int, beams: int, label: str, chunk: int
) -> None:
    model = make_model(label, vocabulary=11)
    request = Request(prompt=tuple(prompt), max_new_tokens=steps)
    found = search(model, request, beams=beams, length_penalty=0.0, chunk=chunk)
    expected = naive_beams(model, tuple(prompt), steps, beams)
    assert [beam.tokens for beam in found] == [tokens for tokens, _ in expected]
    assert [beam.logprob for beam in found] == pytest.approx([total for _, total in expected])
    assert {beam.finish for beam in found} == {"length"}


def test_beams_end_before_stop_strings() -> None:
    model = make_model("QKV")
    tokenizer = CharacterTokenizer("abcd")
    request = Request(prompt=(1,), max_new_tokens=4, stop=("cb", "a"))
    found = search(model, request, beams=TINY**4, tokenizer=tokenizer, length_penalty=0.0)
    assert {beam.finish for beam in found} == {"stop", "length"}
    for beam in found:
        text = "".join("abcd"[token] for token in beam.tokens)
        assert beam.text == text.split("cb")[0].split("a")[0]
        ended = "cb" in text or "a" in text
        assert beam.finish == ("stop" if ended else "length")
        assert not ended or ("cb" not in text[:-1] and "a" not in text[:-1])
        assert ended or len(text) == 4
    with torch.no_grad():
        total = sum(float(torch.tensor(beam.logprob).exp()) for beam in found)
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "expected from 1 to 1,024 beams, got 0"),
        ({"length_penalty": 1e308}, "expected a length penalty from -16 to 16, got 1e[+]308"),
        ({"sampling": Sampling(temperature=1.0)}, "expected a greedy request without"),
        ({"sampling": Sampling(repetition_penalty=1.1)}, "expected a greedy request without"),
        ({"stop": ("a",)}, "expected a tokenizer for stop strings, got none"),
        ({"prompt": (9,)}, "expected tokens from 0 to 3, got 9"),
    ],
)
def test_invalid_arguments_are_rejected(options: dict[str, object], message: str) -> None:
    own = {name: options.pop(name) for name in ("beams", "length_penalty") if name in options}
    request = Request(**{"prompt": (1,), "max_new_tokens": 3, **options})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        search(make_model("QKV"), request, **{"beams": 2, **own})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a model in evaluation mode"):
        search(make_model("QKV").train(), Request(prompt=(1,), max_new_tokens=3), beams=2)
