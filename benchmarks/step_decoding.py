"""One decoded token in one native call, against reading what it has to read.

d_model 512, 8 layers, 8 heads, SwiGLU of 1,408, vocabulary 4,096 (30M parameters) after 64 and
2,048 tokens in float32 and bfloat16, with separate keys and values and as latent attention of 128
channels, which is also compared with its layers; the same with 768 channels, 12 layers, vocabulary
50,304 (124M in the matrices), and there with 8-bit weights too; 8- and 4-bit caches after
32,768 tokens, with rotary and with decoupled positions. Random weights, batch 1, one thread.

In the same rounds the machine reads as many bytes in a row as a token needs of weights and cache,
in each turn the next ones of 512 MiB, so that they come from memory: the share of its rate. The
last cache of a processor holds a part of the 30M from one token to the next, so a step can be
faster than memory; of the 124M it holds little.
"""

import itertools
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch

from decode_attention import load_probes
from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheOptions, CacheStorage
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.nn.cache import KVCache
from qkvary.nn.decoding.native import library
from qkvary.nn.decoding.step import NativeStep
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.quantized_weights import quantize_weights
from timing.interleaved import (
    Effort,
    Timing,
    median_with_interval,
    print_case,
    read_effort,
    take_turns,
)

NAME = "step_decoding"
FULL = Effort(rounds=15, turn_seconds=0.05)
QUICK = Effort(rounds=1, turn_seconds=0.0)
CONTEXTS, LONG, QUICK_LONG = (64, 2048), 32_768, 512
AHEAD_BYTES, MEMORY_BYTES = 4096, 512 * 2**20
LEAST_OF_READING, LEAST_OVER_LAYERS = 0.85, 1.5
LEAST_OVER_BFLOAT16 = {"int8": 1.6, "int4": 2.0}
SEPARATE, DECOUPLED, LATENT = (
    "QKV@rotary",
    "QKV@decoupled-16",
    "Q-K=V@decoupled-16@latent-128@kv-norm",
)


class Size(NamedTuple):
    """The widths of a network."""

    d_model: int
    num_heads: int
    num_layers: int
    d_ff: int
    vocabulary: int


SIZES = {
    "30M": Size(512, 8, 8, 1408, 4096),
    "124M": Size(768, 12, 12, 2048, 50_304),
    "quick": Size(64, 2, 2, 96, 131),
}


def make_network(
    name: str, context: int, dtype: torch.dtype, label: str = SEPARATE
) -> LanguageModel:
    """A modern network with random weights and room for a token after the context."""
    size = SIZES[name]
    attention = AttentionConfig(
        d_model=size.d_model,
        num_heads=size.num_heads,
        variant=parse_variant(label),
        causal=True,
        bias=False,
        out_bias=False,
    )
    config = LanguageModelConfig(
        attention=attention,
        block=BlockConfig(d_ff=size.d_ff, activation="swiglu", norm="rmsnorm", bias=False),
        num_layers=size.num_layers,
        vocabulary=size.vocabulary,
        max_tokens=context + 1,
        positions="none",
        tied_head=False,
    )
    return LanguageModel(config, seed=0).eval().to(dtype)


class Token:
    """A token after a context of random entries, again and again."""

    def __init__(
        self, model: LanguageModel, context: int, storage: CacheStorage = "preallocated"
    ) -> None:
        """Fill a cache and describe the step."""
        # A token that became codes cannot be taken back: there is room for those of all rounds.
        room = context + (1 if storage == "preallocated" else 4096)
        object.__setattr__(model.config, "max_tokens", room)
        options = CacheOptions(layout="rotated", storage=storage)
        self.cache = KVCache(model.config.layers, max_tokens=room, options=options)
        self.context, dtype = context, model.embedding.dtype
        generator = torch.Generator().manual_seed(0)
        self.model, self.token = model, torch.tensor([5])
        one = KVCache(model.config.layers, options=CacheOptions(layout="rotated"))
        model(self.token[None], cache=one)
        for layer, known in zip(self.cache.layers, one.layers, strict=True):
            shapes = {name: entry.shape for name, entry in known.read().items()}
            layer.append(
                {
                    name: torch.randn(rows, heads, context, width, generator=generator).to(dtype)
                    for name, (rows, heads, _, width) in shapes.items()
                }
            )
        self.step = NativeStep(model, self.cache)
        unread = 0 if model.config.tied_head else model.embedding.nbytes
        weights = sum(part.nbytes for part in model.parameters()) - unread
        self.bytes = weights + self.cache.nbytes * context // room

    def __call__(self) -> None:
        """Take the step, and take it back where that is possible."""
        self.step(self.token, None)
        if not self.cache.options.is_quantized:
            self.cache.crop(self.context)

    def pass_layers(self) -> None:
        """Take the step layer by layer, with the kernel for attention that the machine has."""
        for layer in self.cache.layers:
            layer.kernel = "auto"
        self.model(self.token[None], cache=self.cache)
        self.cache.crop(self.context)


def make_reading(size: int) -> Callable[[], object]:
    """Reading so many bytes in a row, the next ones each time."""
    probes = load_probes()
    if probes is None:
        raise RuntimeError("expected a compiler for the probe of reading, got none")
    count = size // 4
    numbers = torch.ones(max(1, MEMORY_BYTES // size), count)
    rows = itertools.cycle(numbers)
    return lambda: probes.probe_read(next(rows).data_ptr(), count, AHEAD_BYTES)


def measure_reading(size: str, context: int, dtype: torch.dtype, effort: Effort) -> None:
    """Print the share of the memory's rate that a token reaches."""
    token = Token(make_network(size, context, dtype), context)
    timing = take_turns({"step": token, "reading": make_reading(token.bytes)}, effort)
    shares = zip(timing.seconds["reading"], timing.seconds["step"], strict=True)
    print_case(
        NAME,
        f"share of reading: {size}, {str(dtype).removeprefix('torch.')}, after {context}",
        median_with_interval([read / own for read, own in shares]),
        goal=LEAST_OF_READING,
        better="higher",
        timing=timing,
        gb_per_s=rates(timing, {"step": token.bytes, "reading": token.bytes}),
    )


def measure_latent(size: str, context: int, dtype: torch.dtype, effort: Effort) -> None:
    """Print what latent attention gains over its layers, and its share of the memory's rate."""
    latent, separate = (
        Token(make_network(size, context, dtype, label), context) for label in (LATENT, SEPARATE)
    )
    alternatives = {
        "latent": latent,
        "layers": latent.pass_layers,
        "separate": separate,
        "reading": make_reading(latent.bytes),
    }
    timing = take_turns(alternatives, effort)
    case = f"{size}, {str(dtype).removeprefix('torch.')}, after {context}"
    tokens = {name: round(1 / seconds, 1) for name, seconds in timing.medians.items()}
    del tokens["reading"]
    print_case(
        NAME,
        f"layers over the step of latent attention: {case}",
        timing.ratio("layers", "latent"),
        goal=LEAST_OVER_LAYERS,
        better="higher",
        timing=timing,
        tokens_per_second=tokens,
    )
    print_case(
        NAME,
        f"share of reading: latent attention, {case}",
        timing.ratio("reading", "latent"),
        goal=LEAST_OF_READING,
        better="higher",
        timing=timing,
        gb_per_s=rates(timing, {"latent": latent.bytes, "reading": latent.bytes}),
    )


def measure_weights(size: str, effort: Effort) -> None:
    """Print what 8-bit weights gain over bfloat16."""
    plain, coded = (make_network(size, 64, torch.bfloat16) for _ in range(2))
    tokens = {"bfloat16": Token(plain, 64), "int8": Token(quantize_weights(coded), 64)}
    show("weights", f"{size}, after 64", tokens, effort)


def measure_caches(size: str, context: int, label: str, effort: Effort) -> None:
    """Print what low-bit caches gain over bfloat16."""
    storages: dict[str, CacheStorage] = {
        "bfloat16": "preallocated",
        "int8": "int8",
        "int4": "int4",
    }
    tokens = {
        name: Token(make_network(size, context, torch.bfloat16, label), context, storage)
        for name, storage in storages.items()
    }
    show("cache", f"{size}, {label}, after {context}", tokens, effort)


def show(what: str, case: str, tokens: dict[str, Token], effort: Effort) -> None:
    """Print a line for each of few bits."""
    timing = take_turns(tokens, effort)
    for name in list(tokens)[1:]:
        print_case(
            NAME,
            f"bfloat16 over {name} {what}: {case}",
            timing.ratio("bfloat16", name),
            goal=LEAST_OVER_BFLOAT16[name],
            better="higher",
            timing=timing,
            gb_per_s=rates(timing, {key: token.bytes for key, token in tokens.items()}),
        )


def rates(timing: Timing, sizes: dict[str, int]) -> dict[str, float]:
    """Bytes a second, in 10^9."""
    medians = timing.medians
    return {name: round(size / medians[name] / 1e9, 1) for name, size in sizes.items()}


def main() -> None:
    """Measure all cases."""
    torch.set_num_threads(1)
    effort = read_effort(full=FULL, quick=QUICK)
    if library() is None or load_probes() is None:
        sys.exit(f"{NAME}: expected a C++ compiler, got none")
    is_quick = effort is QUICK
    for size in ["quick"] if is_quick else ["30M", "124M"]:
        for context in CONTEXTS:
            for dtype in (torch.float32, torch.bfloat16):
                measure_reading(size, context, dtype, effort)
                measure_latent(size, context, dtype, effort)
    measure_weights("quick" if is_quick else "124M", effort)
    for label in (SEPARATE, DECOUPLED):
        cached, context = ("quick", QUICK_LONG) if is_quick else ("30M", LONG)
        measure_caches(cached, context, label, effort)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
