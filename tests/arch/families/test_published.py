"""Published models: parameters, those of one token, and the cache of 16-bit numbers.

That files of every family are counted as transformers builds them is shown in contracts; here
the sizes are those of the published files, worked out by hand.
"""

import pytest

from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.parameters import active_parameters, model_parameters
from tests.arch.families.config_files import read

PUBLISHED = [
    # 12 layers, keys and values, 12 heads of 64 channels, 2 bytes: 36,864 a token.
    ("gpt2", 124_439_808, None, 1024, 1024 * 36_864),
    ("bloom-560m", 559_214_592, None, 2048, 2048 * 24 * 2 * 16 * 64 * 2),
    ("falcon-40b", 41_303_293_952, None, 2048, 2048 * 60 * 2 * 8 * 64 * 2),
    ("phi-2", 2_779_683_840, None, 2048, 2048 * 32 * 2 * 32 * 80 * 2),
    ("llama-3.1-8b", 8_030_261_248, None, 32_768, 4 * 2**30),
    # At most 4,095 tokens of a window of 4,096.
    ("mistral-7b", 7_241_732_096, None, 32_768, 4095 * 32 * 2 * 8 * 128 * 2),
    ("mixtral-8x7b", 46_702_792_704, 12_879_925_248, 32_768, 4 * 2**30),
    ("qwen3-8b", 8_190_735_360, None, 40_960, 40_960 * 36 * 2 * 8 * 128 * 2),
    ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704, 32_768, 3 * 2**30),
    # Every second of 46 layers has a window of 4,096.
    ("gemma-2-27b", 27_227_128_320, None, 8192, 23 * (4095 + 8192) * 8192),
    ("gemma-4-31b", 30_697_345_280, None, 262_144, 50 * 1023 * 16_384 + 10 * 262_144 * 8192),
    ("gemma-4-26b-a4b", 25_233_141_760, 3_822_530_560, 32_768, 880_599_040),
    ("gemma-4-e2b", 4_628_569_344, None, 32_768, 207_605_760),
    # A latent of 512 channels and a rotated key of 64 in 27 layers.
    ("deepseek-v2-lite", 15_706_484_224, 2_661_150_208, 32_768, 32_768 * 27 * 576 * 2),
    # 43 windows of 127 tokens; 21 layers with summaries of 4 tokens, 20 with those of 128.
    (
        "deepseek-v4-flash",
        284_332_230_231,
        13_799_622_231,
        32_768,
        2 * (43 * 127 * 512 + 21 * 640 * (8192 + 8) + 20 * 512 * 256),
    ),
    ("t5-small", 60_506_624, None, 512, 1024 * 6 * 2 * 8 * 64 * 2),
    ("whisper-tiny", 37_760_640, None, 448, (448 + 1500) * 4 * 2 * 384 * 2),
]


@pytest.mark.parametrize(("name", "total", "active", "context", "cache"), PUBLISHED)
def test_published_sizes(
    name: str, total: int, active: int | None, context: int, cache: int
) -> None:
    model = read(name)
    assert model_parameters(model).total == total
    assert active is None or active_parameters(model) == active
    assert model_cache_bytes(model, context=context, encoder_tokens=512) == cache
