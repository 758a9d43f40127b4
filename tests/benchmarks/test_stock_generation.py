import pytest

from qkvary.arch.caches import CacheOptions
from tests.inference.decoding_networks import VOCABULARY, make_network
from timing.answers import answer_with_cache, draw_prompts
from timing.stock_generation import ATTENTION, StockModel

NEW, LENGTH = 11, 9


@pytest.mark.parametrize(
    ("label", "architecture", "numbers"),
    [
        # GPT-2 has as many KV heads as heads, Llama has not: 3 layers of 20 channels, or of 10.
        ("QKV", "gpt2", 2 * 3 * 20),
        ("Q-K=V", "gpt2", 2 * 3 * 20),
        ("Q-MQA", "gpt2", 2 * 3 * 20),
        ("QKV@rotary", "llama", 2 * 3 * 20),
        ("Q-MQA@rotary", "llama", 2 * 3 * 10),
        ("Q-K=V@decoupled-4", "deepseek_v3", 3 * (20 + 4)),
    ],
)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_transformers_gives_the_same_tokens(
    label: str, architecture: str, numbers: int, cache: str
) -> None:
    network = make_network(label)
    stock = StockModel(network)
    prompts = draw_prompts(VOCABULARY, batch=2, length=LENGTH, seed=1)
    ours = answer_with_cache(network, prompts, NEW, options=CacheOptions(storage="preallocated"))
    theirs = stock.answer(prompts, NEW, cache=cache)
    assert theirs.tokens == ours.tokens
    assert 0 < theirs.first.wall < theirs.whole.wall
    assert stock.architecture == architecture
    assert stock.model.config._attn_implementation == ATTENTION
    tokens = LENGTH + NEW - 1
    assert theirs.cache_bytes == 2 * numbers * 4 * tokens
    assert theirs.cache_bytes == 2 * stock.cache_formula_bytes(
        cache, tokens=tokens, dtype="float32"
    )
