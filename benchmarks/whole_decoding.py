"""A whole answer: 240 new tokens after a prompt of 16, with a cache, without one, in transformers.

d_model 256, 4 layers, 4 heads, 512 tokens, float32, batch 1, one thread, greedy. Everything that a
user waits for counts: the prompt, every step, and what chooses tokens. The cache and the kernel are
the default ones. Transformers runs the same weights as its own architecture with its own
``generate``, and is left out where it is not installed.
"""

import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.packages import is_installed
from timing.answers import (
    answer_with_cache,
    answer_without_cache,
    default_options,
    draw_prompts,
)
from timing.interleaved import Effort, print_case, read_effort, take_turns
from timing.stock_generation import StockModel

NAME = "whole_decoding"
FULL = Effort(rounds=9, turn_seconds=0.5)
QUICK = Effort(rounds=1, turn_seconds=0.0)
VARIANTS = ("QKV", "Q-K=V", "MQA", "Q-MQA")
PROMPT, NEW, QUICK_NEW = 16, 240, 8
LEAST_OVER_PREFIX, LEAST_OVER_TRANSFORMERS = 9.0, 2.0
SEED = 0


def make_network(label: str) -> LanguageModel:
    """The network of a case."""
    variant = parse_variant(label)
    config = LanguageModelConfig(
        attention=AttentionConfig(d_model=256, num_heads=4, variant=variant, causal=True),
        block=BlockConfig(d_ff=1024),
        num_layers=4,
        vocabulary=512,
        max_tokens=PROMPT + NEW,
        positions="learned",
    )
    return LanguageModel(config, seed=SEED).eval()


def measure(label: str, effort: Effort, new_tokens: int) -> None:
    """Print all lines of a variant."""
    model = make_network(label)
    prompts = draw_prompts(512, batch=1, length=PROMPT, seed=SEED)
    options = default_options(model)
    steps = range(new_tokens)
    known = answer_with_cache(model, prompts, new_tokens, options=options).tokens
    alternatives = {
        "with cache": lambda: answer_with_cache(model, prompts, new_tokens, options=options),
        "without cache": lambda: answer_without_cache(model, prompts, known, steps),
    }
    goals = {"without cache": LEAST_OVER_PREFIX}
    if is_installed("transformers"):
        stock = StockModel(model)
        alternatives["transformers"] = lambda: stock.answer(prompts, new_tokens)
        goals["transformers"] = LEAST_OVER_TRANSFORMERS
    texts = {call().tokens for call in alternatives.values()}
    if len(texts) > 1:
        raise RuntimeError(f"expected the same tokens of {label} by all ways, got {len(texts)}")
    timing = take_turns(alternatives, effort)
    speeds = {name: round(new_tokens / seconds, 1) for name, seconds in timing.medians.items()}
    for other, goal in goals.items():
        print_case(
            NAME,
            f"{other} over with cache: {label}, {new_tokens} new tokens",
            timing.ratio(other, "with cache"),
            goal=goal,
            better="higher",
            timing=timing,
            tokens_per_second=speeds,
        )


def main() -> None:
    """Measure every variant."""
    torch.set_num_threads(1)
    effort = read_effort(full=FULL, quick=QUICK)
    for label in VARIANTS:
        measure(label, effort, QUICK_NEW if effort is QUICK else NEW)


if __name__ == "__main__":
    main()
