"""Evaluation, prefill and decoding at the sizes of published models, next to transformers.

Random weights in the sizes of SmolLM2-135M and Qwen2.5-0.5B, batch 1, in float32 and bfloat16, with
one thread and with two. Transformers computes with the same weights, as Llama with SDPA. Evaluation
is the loss of every token of 512, prefill the cache of 512 tokens and the last logits, decoding 8
tokens after them. Two threads are timed by the clock on the wall, one by CPU time.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.inference.decoding import make_cache, prefill
from qkvary.inference.evaluation.scoring import score_rows
from qkvary.inference.stepping import Stepper
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.packages import is_installed
from timing.interleaved import Effort, print_case, read_effort, take_turns
from timing.stock_generation import StockModel

NAME = "published_model"
FULL = Effort(rounds=7, turn_seconds=0.0)
QUICK = Effort(rounds=1, turn_seconds=0.0)
TOKENS, QUICK_TOKENS, NEW = 512, 24, 8
NOT_SLOWER = 1.0
DTYPES = (torch.float32, torch.bfloat16)
THREADS = (1, 2)


class Size(NamedTuple):
    """The widths of a network."""

    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    d_ff: int
    vocabulary: int


SIZES = {
    "135M": Size(576, 30, 9, 3, 1536, 49_152),
    "0.5B": Size(896, 24, 14, 2, 4864, 151_936),
}
QUICK_SIZES = {"quick": Size(64, 2, 4, 2, 96, 131)}


def make_network(size: Size) -> LanguageModel:
    """Return a network with random weights, as Llama has it."""
    attention = AttentionConfig(
        d_model=size.d_model,
        num_heads=size.num_heads,
        variant=parse_variant(f"GQA-{size.num_kv_heads}@rotary"),
        causal=True,
        bias=False,
        out_bias=False,
        position=PositionConfig(rotary_fraction=1.0),
    )
    config = LanguageModelConfig(
        attention=attention,
        block=BlockConfig(d_ff=size.d_ff, activation="swiglu", norm="rmsnorm", bias=False),
        num_layers=size.num_layers,
        vocabulary=size.vocabulary,
        max_tokens=TOKENS + NEW,
        positions="none",
        tied_head=True,
    )
    return LanguageModel(config, seed=0).eval()


def evaluations(
    network: LanguageModel, stock: Any, tokens: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """Return the loss of every token, by both."""
    rows = tokens.numpy()

    def by_transformers() -> object:
        logits = stock(tokens[:, :-1], use_cache=False).logits[0].float()
        return F.cross_entropy(logits, tokens[0, 1:], reduction="none").numpy()

    return {
        "ours": lambda: score_rows(network, rows, batch_size=1),
        "transformers": by_transformers,
    }


def prefills(
    network: LanguageModel, stock: Any, tokens: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """Return the cache of a prompt and its last logits, by both."""

    def ours() -> object:
        return prefill(network, tokens, cache=make_cache(network, TOKENS + NEW))

    return {
        "ours": ours,
        "transformers": lambda: stock(tokens, use_cache=True, logits_to_keep=1).logits,
    }


def decodings(
    network: LanguageModel, stock: Any, tokens: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """Return a few tokens after a prompt, which both have read before, and take back."""
    length = tokens.shape[1]
    cache = make_cache(network, TOKENS + NEW)
    prefill(network, tokens, cache=cache)
    step = Stepper(network, cache)
    theirs = stock(tokens, use_cache=True, logits_to_keep=1).past_key_values
    one = tokens[:, 0]

    def ours() -> None:
        for _ in range(NEW):
            step(one)
        cache.crop(length)

    def by_transformers() -> None:
        for _ in range(NEW):
            stock(one[:, None], past_key_values=theirs, use_cache=True)
        theirs.crop(-NEW)

    return {"ours": ours, "transformers": by_transformers}


KINDS = {"evaluation": evaluations, "prefill": prefills, "decoding": decodings}


def measure(name: str, size: Size, dtype: torch.dtype, tokens: int, effort: Effort) -> None:
    """Print the lines of a size and type, with one thread and with two."""
    network = make_network(size)
    stock = StockModel(network).model.to(dtype).eval()
    network = network.to(dtype)
    drawn = torch.randint(size.vocabulary, (1, tokens + 1))
    for threads in THREADS:
        torch.set_num_threads(threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        for kind, make in KINDS.items():
            given = drawn if kind == "evaluation" else drawn[:, :-1]
            timing = take_turns(make(network, stock, given), effort, clock=clock)
            print_case(
                NAME,
                f"{kind}, transformers over ours: {name}, {str(dtype).removeprefix('torch.')}, "
                f"{tokens} tokens, threads {threads}",
                timing.ratio("transformers", "ours"),
                goal=NOT_SLOWER,
                better="higher",
                timing=timing,
            )
    torch.set_num_threads(1)


def main() -> None:
    """Measure all sizes and types."""
    effort = read_effort(full=FULL, quick=QUICK)
    torch.manual_seed(0)
    sizes, tokens = (QUICK_SIZES, QUICK_TOKENS) if effort is QUICK else (SIZES, TOKENS)
    with torch.inference_mode():
        for name, size in sizes.items():
            for dtype in DTYPES:
                measure(name, size, dtype, tokens, effort)


if __name__ == "__main__":
    if not is_installed("transformers"):
        sys.exit("ModuleNotFoundError: transformers is not installed: run make setup")
    main()
