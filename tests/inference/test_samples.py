import pytest
import torch
from torch import nn

from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from qkvary.inference.samples import SAMPLE_TOKENS, TextSampler
from qkvary.nn.language_model import LanguageModel
from tests.tasks.tiny_networks import ALPHABET, tiny_network

TOKENIZER = CharacterTokenizer(ALPHABET, has_separator=True)


def network(length: int = 100) -> LanguageModel:
    return LanguageModel(tiny_network("language", length=length), seed=2).eval()  # type: ignore[arg-type]


def test_a_prompt_is_continued_reproducibly() -> None:
    sampler = TextSampler(TOKENIZER, "ab", seed=4)
    model = network()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    said = sampler(model)
    assert said.startswith("ab")
    assert 2 < len(said) <= 2 + SAMPLE_TOKENS
    assert sampler(model) == said
    assert torch.equal(before, torch.get_rng_state())
    assert TextSampler(TOKENIZER, "ab", seed=1)(network()) != said


def test_without_a_prompt_it_begins_a_document() -> None:
    assert TextSampler(TOKENIZER)(network())
    with pytest.raises(ValueError, match="expected a prompt, got none"):
        TextSampler(CharacterTokenizer(ALPHABET))


def test_a_prompt_that_fills_every_position_is_returned() -> None:
    assert len(TextSampler(TOKENIZER, "abcdefg")(network(7))) <= 8
    assert len(TextSampler(TOKENIZER, "abc")(network(7))) <= 8


def test_a_network_without_decoding_is_rejected() -> None:
    with pytest.raises(TypeError, match="expected a network that decodes, got Linear"):
        TextSampler(ByteTokenizer(), "x")(nn.Linear(2, 2))
