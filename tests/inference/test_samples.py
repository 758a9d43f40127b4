import torch

from qkvary.data.tokenizers import CharacterTokenizer
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
