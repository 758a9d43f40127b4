"""Peak memory of decoding, measured in a process of its own.

On Linux it is the high-water mark of resident memory (``VmHWM``), reset after the network is loaded
and has decoded a few tokens, so that imports, first kernel calls and weights do not count. Unlike
``ru_maxrss`` it does not start from the parent's memory. On CUDA it is the peak of torch's
allocator, elsewhere ``ru_maxrss``.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from qkvary.arch.caches import CacheOptions
from qkvary.arch.canonical import canonical_json, from_dict, stored
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.models import LoadedModel
from qkvary.costs.formats import Dtype
from qkvary.inference.benchmark.measuring import TimedAnswer, answer_with_cache, draw_prompts
from qkvary.inference.benchmark.stock_generation import StockModel
from qkvary.inference.decoding import DEFAULT_CHUNK
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import ResourceError
from qkvary.storage.posix import resource

MemorySource = Literal["VmHWM", "ru_maxrss", "torch.cuda"]
"""The counter that was read."""

WARM_TOKENS = 8
"""Prompt tokens and new tokens of the warm-up."""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""Settings of the fresh process: every larger block is a mapping of its own, returned when freed.
Otherwise glibc raises this limit and keeps freed blocks, so that a cache may reuse memory that was
counted before."""

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@stored("NetworkSource")
@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSource:
    """A description from which any process can load a network."""

    config: LanguageModelConfig
    """The configuration."""
    seed: int
    """The seed of random weights, without a checkpoint."""
    checkpoint: str | None
    """The path of the weights."""
    dtype: Dtype
    """The dtype of the network."""
    device: str
    """The device of the network."""

    def load(self) -> LanguageModel:
        """Load the network."""
        if self.checkpoint is None:
            loaded = LoadedModel(LanguageModel(self.config, seed=self.seed).eval(), None)
        else:
            loaded = load_checkpoint(self.checkpoint)
        return loaded.to(self.device, self.dtype).network


@stored("MemoryJob")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryJob:
    """One answer whose memory is measured."""

    network: NetworkSource
    """The network."""
    cache: CacheOptions | None
    """The options of the cache; ``None`` for transformers' dynamic cache."""
    batch: int
    """The batch size."""
    prompt_tokens: int
    """Prompt tokens per row."""
    new_tokens: int
    """New tokens per row."""
    threads: int
    """Torch threads."""
    chunk: int = DEFAULT_CHUNK
    """Prompt tokens per forward pass."""


@stored("MemoryReading")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """The memory of one answer."""

    source: MemorySource
    """The counter that was read."""
    weight_bytes: int
    """Bytes of all parameters."""
    before_bytes: int
    """Memory of the process with the network, before the answer."""
    peak_bytes: int
    """Peak memory of the process."""
    cache_bytes: int
    """The final size of the cache."""

    @property
    def answer_bytes(self) -> int:
        """The memory that the answer added at the peak: cache and temporaries."""
        return self.peak_bytes - self.before_bytes


def measure_in_subprocess(job: MemoryJob) -> MemoryReading:
    """Measure in a fresh process.

    Raises:
        ResourceError: if the process fails, which it does when memory runs out.
    """
    path = os.pathsep.join(place for place in sys.path if place)
    done = subprocess.run(
        [sys.executable, "-m", "qkvary.inference.benchmark.peak_memory"],
        input=canonical_json(job),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ALLOCATOR, "PYTHONPATH": path, "OMP_NUM_THREADS": str(job.threads)},
    )
    if done.returncode:
        output = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ResourceError(
            f"the process that measures memory ended with code {done.returncode}: {output}"
        )
    return from_dict(MemoryReading, json.loads(done.stdout.splitlines()[-1]))


def measure_here(job: MemoryJob) -> MemoryReading:
    """Measure in this process, whose other allocations count too."""
    torch.set_num_threads(job.threads)
    device = torch.device(job.network.device)
    model = job.network.load()
    # Only the exported copy is kept; otherwise both networks would be counted.
    answer, weights = _measured_model(job, model)
    del model
    few = min(WARM_TOKENS, job.prompt_tokens), min(WARM_TOKENS, job.new_tokens)
    answer(*few)
    source = _reset_peak(device)
    before = _read_memory(device, source, peak=False)
    cache_bytes = answer(job.prompt_tokens, job.new_tokens).cache_bytes
    peak = _read_memory(device, source, peak=True)
    return MemoryReading(
        source=source,
        weight_bytes=weights,
        before_bytes=before,
        peak_bytes=peak,
        cache_bytes=cache_bytes,
    )


def _measured_model(
    job: MemoryJob, model: LanguageModel
) -> tuple[Callable[[int, int], TimedAnswer], int]:
    """Return a function of prompt and new tokens that answers, and the bytes of all parameters."""
    options, chunk = job.cache, job.chunk
    draw = partial(draw_prompts, model.config.vocabulary, batch=job.batch, seed=0)
    if options is None:
        stock = StockModel(model)

        def answer(prompt_tokens: int, new_tokens: int) -> TimedAnswer:
            part = chunk if prompt_tokens > chunk else None
            return stock.answer(draw(length=prompt_tokens), new_tokens, chunk=part)

        return answer, _count_bytes(stock.model)

    def answer_here(prompt_tokens: int, new_tokens: int) -> TimedAnswer:
        prompts = draw(length=prompt_tokens)
        return answer_with_cache(model, prompts, new_tokens, options=options, chunk=chunk)

    return answer_here, _count_bytes(model)


def _count_bytes(network: nn.Module) -> int:
    return sum(part.numel() * part.element_size() for part in network.parameters())


def _reset_peak(device: torch.device) -> MemorySource:
    """Reset the high-water mark if possible, and return the counter to read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return "torch.cuda"
    if not _STATUS.exists():
        return "ru_maxrss"
    with suppress(OSError):
        # Without the reset the mark is an upper bound, exact if the answer takes more than loading.
        _CLEAR_REFS.write_text(_RESET_PEAK)
    return "VmHWM"


def _read_memory(device: torch.device, source: MemorySource, *, peak: bool) -> int:
    if source == "torch.cuda":
        torch.cuda.synchronize(device)
        read = torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated
        return read(device)
    if source == "VmHWM":
        lines = _STATUS.read_text("utf-8").splitlines()
        name = "VmHWM:" if peak else "VmRSS:"
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Read a job from standard input, write the reading to standard output."""
    job = from_dict(MemoryJob, json.loads(sys.stdin.read()))
    sys.stdout.write(canonical_json(measure_here(job)) + "\n")


if __name__ == "__main__":
    main()
