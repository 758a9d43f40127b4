import pytest
import torch
from torch import nn

from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from qkvary.inference.samples import SAMPLE_TOKENS, Sampler
from qkvary.nn.language_model import LanguageModel
from tests.tasks.tiny_networks import ALPHABET, tiny_network

TOKENIZER = CharacterTokenizer(ALPHABET, has_separator=True)


def network(length: int = 100) -> LanguageModel:
    return LanguageModel(tiny_network("language", length=length), seed=2).eval()  # type: ignore[arg-type]


def test_a_prompt_is_continued_and_always_the_same_way() -> None:
    sampler = Sampler(TOKENIZER, "ab", seed=4)
    model = network()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    said = sampler(model)
    assert said.startswith("ab")
    assert 2 < len(said) <= 2 + SAMPLE_TOKENS
    assert sampler(model) == said
    assert torch.equal(before, torch.get_rng_state())
    assert Sampler(TOKENIZER, "ab", seed=1)(network()) != said


def test_without_a_prompt_it_begins_a_document() -> None:
    assert Sampler(TOKENIZER)(network())
    with pytest.raises(ValueError, match="expected a prompt, got none"):
        Sampler(CharacterTokenizer(ALPHABET))


def test_a_prompt_that_fills_every_place_is_all_that_is_said() -> None:
    assert len(Sampler(TOKENIZER, "abcdefg")(network(7))) <= 8
    assert len(Sampler(TOKENIZER, "abc")(network(7))) <= 8


def test_another_network_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a network that decodes, got Linear"):
        Sampler(ByteTokenizer(), "x")(nn.Linear(2, 2))
