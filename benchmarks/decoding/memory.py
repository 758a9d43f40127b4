"""Peak memory of decoding, measured in a process of its own.

The high-water mark is reset after the network is loaded and has decoded a few tokens, so that
imports, first kernel calls and weights do not count. On CUDA it is the peak of torch's allocator.
"""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple
from unittest import mock

import torch

from qkvary.arch.caches import CacheOptions
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.models import LoadedModel
from qkvary.costs.formats import Dtype
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import ResourceError
from timing.answers import TimedAnswer, answer_with_cache, draw_prompts
from timing.memory import ALLOCATOR, read_memory, reset_peak
from timing.stock_generation import StockModel

WARM_TOKENS = 8
"""Prompt tokens and new tokens of the warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSource:
    """A description from which any process can load a network."""

    config: LanguageModelConfig
    seed: int
    checkpoint: str | None
    """The path of the weights; ``None`` for random ones."""
    dtype: Dtype
    device: str

    def load(self) -> LanguageModel:
        """Load the network."""
        if self.checkpoint is None:
            loaded = LoadedModel(LanguageModel(self.config, seed=self.seed).eval(), None)
        else:
            loaded = load_checkpoint(self.checkpoint)
        return loaded.to(self.device, self.dtype).network


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryJob:
    """One answer whose memory is measured."""

    network: NetworkSource
    cache: CacheOptions | None
    """The options of the cache; ``None`` for transformers' dynamic cache."""
    batch: int
    prompt_tokens: int
    new_tokens: int
    threads: int
    chunk: int
    """Prompt tokens per forward pass."""


class MemoryReading(NamedTuple):
    """The memory of one answer, in bytes."""

    source: str
    """The counter: ``VmHWM``, ``ru_maxrss`` or ``torch.cuda``."""
    weight_bytes: int
    before_bytes: int
    """Memory of the process with the network, before the answer."""
    peak_bytes: int
    cache_bytes: int


def measure_in_subprocess(job: MemoryJob) -> MemoryReading:
    """Measure in a fresh process.

    Raises:
        ResourceError: if the process dies, which it does when memory runs out.
    """
    threads = {"OMP_NUM_THREADS": str(job.threads)}
    with (
        mock.patch.dict(os.environ, ALLOCATOR | threads),
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        try:
            return pool.submit(measure_here, job).result()
        except (BrokenProcessPool, RuntimeError, MemoryError) as error:
            raise ResourceError(f"the process that measures memory failed: {error}") from None


def measure_here(job: MemoryJob) -> MemoryReading:
    """Measure in this process, whose other allocations count too."""
    torch.set_num_threads(job.threads)
    device = torch.device(job.network.device)
    answer, weights = _load(job)
    answer(min(WARM_TOKENS, job.prompt_tokens), min(WARM_TOKENS, job.new_tokens))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        source, before = "torch.cuda", torch.cuda.memory_allocated(device)
    else:
        source, before = reset_peak(), read_memory("VmRSS:")
    cache_bytes = answer(job.prompt_tokens, job.new_tokens).cache_bytes
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = read_memory("VmHWM:")
    return MemoryReading(source, weights, before, peak, cache_bytes)


def _load(job: MemoryJob) -> tuple[Callable[[int, int], TimedAnswer], int]:
    """Return a function of prompt and new tokens that answers, and the bytes of all parameters."""
    network, options = job.network.load(), job.cache
    vocabulary = network.config.vocabulary
    # Of a network in transformers only the exported copy is kept; otherwise both would be counted.
    stock = StockModel(network) if options is None else None
    measured = network if stock is None else stock.model
    weights = sum(part.numel() * part.element_size() for part in measured.parameters())

    def answer(prompt_tokens: int, new_tokens: int) -> TimedAnswer:
        prompts = draw_prompts(vocabulary, batch=job.batch, length=prompt_tokens, seed=0)
        if stock is not None:
            part = job.chunk if prompt_tokens > job.chunk else None
            return stock.answer(prompts, new_tokens, chunk=part)
        return answer_with_cache(measured, prompts, new_tokens, options=options, chunk=job.chunk)

    del network
    return answer, weights
