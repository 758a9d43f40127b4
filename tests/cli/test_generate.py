"""Texts are printed as they come, are the same in JSON, and bad input is one sentence."""

from pathlib import Path

import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.models import save_model
from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.nn.language_model import LanguageModel
from tests.conftest import Typed
from tests.contracts.variant_cases import make_language_model_config, randomize


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--temperature", "1.3", "--seed", "4"],
        ["--top-p", "0.8", "--min-p", "0.1", "--repetition-penalty", "1.2"],
        ["--stop", "a", "--stop", "bc"],
        ["--beams", "3"],
    ],
)
def test_what_is_shown_is_what_the_document_says(
    options: list[str], places: Path, typed: Typed
) -> None:
    words = ["generate", places / "own", "ab é", "--tokens", "9", *options]
    found = typed.json(*words)
    assert typed(*words) == f"ab é{found['text']}\n"
    assert found["prompt_tokens"] == [0, 1, 8, 12]
    assert len(found["tokens"]) <= 9
    assert found == typed.json(*words)
    assert found["logprobs"] is None
    assert found["finish"] in {"length", "stop"}


@pytest.mark.parametrize(
    "options", [["--deterministic-batch"], ["--beams", "2"], ["--top-k", "9", "--stop", "a"]]
)
def test_several_prompts_get_the_texts_of_each(
    options: list[str], places: Path, typed: Typed
) -> None:
    """Prompts that do not fit one batch of 17 places together are among them."""
    prompts = ["ab", "abcdefgh", "é", "abcdefgh .\n\té"]
    more = ("--tokens", "4", *options)
    alone = [typed.json("generate", places / "own", prompt, *more) for prompt in prompts]
    together = typed.json("generate", places / "own", *prompts, *more)["answers"]
    for key in ("prompt", "tokens", "text", "finish"):
        assert [answer[key] for answer in together] == [one[key] for one in alone]
    shown = typed("generate", places / "own", *prompts, *more)
    assert shown == "\n\n".join(one["prompt"] + one["text"] for one in alone) + "\n"


def test_a_filter_without_a_temperature_means_to_sample(places: Path, typed: Typed) -> None:
    words = ("generate", places / "own", "a")
    greedy = typed.json(*words)
    assert greedy["sampling"]["temperature"] == 0.0
    assert typed.json(*words, "--top-k", "3")["sampling"]["temperature"] == 1.0
    cold = typed.json(*words, "--top-k", "3", "--temperature", "0")
    assert cold["text"] == greedy["text"]
    seeds = {typed.json(*words, "--top-k", "9", "--seed", n)["text"] for n in range(3)}
    assert len(seeds) > 1


def test_as_many_tokens_as_there_are_places_if_nobody_says(places: Path, typed: Typed) -> None:
    words = ("generate", places / "own", "abc")
    assert len(typed.json(*words)["tokens"]) == 15
    assert len(typed.json(*words, "--tokens", "0")["tokens"]) == 0


def test_log_probabilities_are_listed_and_those_of_the_model(places: Path, typed: Typed) -> None:
    words = ("generate", places / "own", "ab", "--tokens", "4", "--logprobs", "--top-k", "4")
    found = typed.json(*words)
    network, _ = load_checkpoint(places / "own")
    tokens = found["prompt_tokens"] + found["tokens"]
    with torch.no_grad():
        every = torch.log_softmax(network(torch.tensor([tokens])).double()[0], dim=-1)
    expected = [float(every[1 + n, token]) for n, token in enumerate(found["tokens"])]
    assert found["logprobs"] == pytest.approx(expected, abs=1e-5)
    rows = [row.split() for row in typed(*words).splitlines() if row.split()]
    for token, logprob in zip(found["tokens"], found["logprobs"], strict=True):
        assert any((row[0], row[-1]) == (str(token), f"{logprob:.4f}") for row in rows)


def test_a_text_cannot_command_the_terminal(tmp_path: Path, typed: Typed) -> None:
    model = LanguageModel(make_language_model_config("QKV"))
    randomize(model, seed=1)
    save_model(tmp_path / "model", model, CharacterTokenizer("\x1b\x07\n\t[31mabcdéf"[:13]))
    shown = typed("generate", tmp_path / "model", "\x1b[31m\ta", "--tokens", "9")
    assert not {"\x1b", "\x07"} & set(shown)
    assert shown.startswith("\\x1b[31m\ta")


def test_a_kernel_that_there_is_not_is_refused_before_the_prompt_is_shown(
    places: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    monkeypatch.setenv("QKVARY_DECODE_KERNEL", "junk")
    printed, said = typed.both("generate", places / "own", "a", code=2)
    assert (printed, said.count("\n")) == ("", 1)
    assert "expected a kernel for decoding in QKVARY_DECODE_KERNEL, got 'junk'; choices: " in said
