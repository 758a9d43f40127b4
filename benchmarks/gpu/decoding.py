"""Decoding at the shapes of paper 1 with random weights in bfloat16: tokens a second and memory.

The cache is filled with random numbers, so that no time goes into prefill. Each case is one line:
the median over rounds of greedy steps, each the argmax of the one before. Peak memory is that of
torch's allocator while decoding, for a process that holds this one network. A line of ``reading``
has the rate of the machine's memory, and each case the share of it that its bytes would take: the
weights once and the stored tokens once a step.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from records import Records
from torch import Tensor

from qkvary.arch.models import as_model
from qkvary.arch.named_networks import find_network
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.replicas import device_cache_bytes
from qkvary.inference.decoding import make_cache
from qkvary.inference.stepping import Stepper
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import is_out_of_memory

PART = "decoding"
SHAPES = {
    "lm-1.2b": ("QKV", "Q-K=V", "GQA-8", "MQA", "Q-GQA-8", "Q-MQA"),
    "lm-300m": ("QKV", "Q-K=V", "GQA-4", "MQA", "Q-GQA-4", "Q-MQA"),
}
"""The networks of paper 1 and the variants of its tables."""
CONTEXTS, BATCHES = (2_048, 8_192, 32_768), (1, 8, 32)
STEPS, ROUNDS, WARM_UP = 16, 5, 4
READ_BYTES = 2**32
SPARE = 0.92
"""Share of the free memory that weights and cache may take."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The cases of a measurement and its length."""

    shapes: dict[str, tuple[str, ...]]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    steps: int
    rounds: int


FULL = Effort(SHAPES, CONTEXTS, BATCHES, STEPS, ROUNDS)
QUICK = Effort({"lm-1m": ("QKV", "Q-K=V", "Q-MQA")}, (64,), (1, 2), 3, 2)


def main() -> None:
    """Measure what is not in the records yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a tiny network")
    options = parser.parse_args()
    records, device = Records(options.out), torch.device(options.device)
    effort = QUICK if options.quick else FULL
    if not records.has("reading"):
        rate = measure_reading(device, 2**22 if options.quick else READ_BYTES)
        records.add("reading", bytes_per_second=rate)
    for shape, variants in effort.shapes.items():
        networks: dict[str, LanguageModel] = {}
        for context in effort.contexts:
            for batch in effort.batches:
                for variant in variants:
                    case = {"shape": shape, "variant": variant, "batch": batch, "context": context}
                    if records.has(PART, **case):
                        continue
                    if variant not in networks:
                        longest = max(effort.contexts) + 2 * effort.steps + WARM_UP
                        networks[variant] = make_network(shape, variant, longest, device)
                    found = measure(networks[variant], batch, context, effort)
                    records.add(PART, **case, **found)


def make_network(shape: str, variant: str, longest: int, device: torch.device) -> LanguageModel:
    """Return a network with random weights, drawn on the device."""
    config = replace(find_network(shape, variant), max_tokens=longest)
    with torch.device("meta"):
        network = LanguageModel(config)
    network = network.to_empty(device=device).to(torch.bfloat16).eval()
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.02, generator=generator)
    return network


def measure(network: LanguageModel, batch: int, context: int, effort: Effort) -> dict[str, object]:
    """Return one case: its rate and memory, or the bytes that do not fit."""
    device = next(network.parameters()).device
    weights = sum(part.numel() * part.element_size() for part in network.parameters())
    read = weights + batch * cache_read(network.config, context)
    described: dict[str, object] = {"weight_bytes": weights, "read_bytes_per_step": read}
    # Closures of earlier cases hold their caches until they are collected.
    gc.collect()
    if not has_room(network.config, batch, context, device):
        return {**described, "fits": False}
    try:
        with torch.inference_mode():
            return {**described, "fits": True, **decode(network, batch, context, effort, weights)}
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        empty_cache(device)
        return {**described, "fits": False}


def decode(
    network: LanguageModel, batch: int, context: int, effort: Effort, weights: int
) -> dict[str, object]:
    """Decode after random entries and return the measurements."""
    device = next(network.parameters()).device
    others = allocated(device) - weights
    cache = make_cache(network, context + effort.steps + WARM_UP)
    tokens = fill(network, cache, batch, context)
    empty_cache(device)
    step = Stepper(network, cache)
    tokens = run(step, tokens, WARM_UP)
    reset_peak(device)
    seconds: list[float] = []
    for _ in range(effort.rounds):
        cache.crop(context)
        synchronize(device)
        start = time.perf_counter()
        tokens = run(step, tokens, effort.steps)
        synchronize(device)
        seconds.append((time.perf_counter() - start) / effort.steps)
    rates = [batch / one for one in seconds]
    return {
        "tokens_per_second": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "peak_bytes": peak(device) - others if device.type == "cuda" else None,
        "cache_bytes": cache.nbytes,
    }


def fill(network: LanguageModel, cache: KVCache, batch: int, context: int) -> Tensor:
    """Fill a cache with as many tokens as the context, and return the next ones."""
    device = next(network.parameters()).device
    tokens = torch.zeros(batch, 1, dtype=torch.long, device=device)
    network(tokens, cache=cache)
    for layer in cache.layers:
        shapes = {name: (one.shape[1], one.shape[3]) for name, one in layer.read().items()}
        dtype = next(iter(layer.read().values())).dtype
        layer.append(
            {
                name: torch.randn(batch, heads, context - 1, width, device=device, dtype=dtype)
                for name, (heads, width) in shapes.items()
            }
        )
    return tokens[:, 0]


def run(step: Callable[[Tensor], Tensor], tokens: Tensor, steps: int) -> Tensor:
    """Decode greedily and return the last tokens."""
    for _ in range(steps):
        tokens = step(tokens).argmax(dim=-1)
    return tokens


def measure_reading(device: torch.device, size: int) -> float:
    """Return the bytes a second at which a copy reads and writes, the median of ten."""
    source = torch.empty(size // 4, dtype=torch.float32, device=device).normal_()
    target = torch.empty_like(source)
    rates: list[float] = []
    for _ in range(11):
        synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        rates.append(2 * size / (time.perf_counter() - start))
    del source, target
    empty_cache(device)
    return statistics.median(rates[1:])


def has_room(config: LanguageModelConfig, batch: int, context: int, device: torch.device) -> bool:
    """Return whether the cache fits into the free memory of a GPU."""
    if device.type != "cuda":
        return True
    empty_cache(device)
    free, _ = torch.cuda.mem_get_info(device)
    return batch * cache_read(config, context) <= SPARE * free


def cache_read(config: LanguageModelConfig, context: int) -> int:
    """Return the bytes of the cache that a token of one sequence reads."""
    return device_cache_bytes(as_model(config), context=context, is_read=True)


def allocated(device: torch.device) -> int:
    """Return the bytes of all live tensors on a GPU; 0 elsewhere."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def peak(device: torch.device) -> int:
    """Return the largest number of bytes since the last reset on a GPU; 0 elsewhere."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def reset_peak(device: torch.device) -> None:
    """Forget the peak of a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def empty_cache(device: torch.device) -> None:
    """Return unused memory of a GPU to its driver."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
