"""The most memory that decoding takes, measured in a process that does nothing else.

On Linux the high-water mark of the resident memory (``VmHWM``), set back once the network is loaded
and has decoded a few tokens, so that what imports, the first use of a kernel and the weights take
is not counted. Unlike ``ru_maxrss`` it does not begin with what the parent process had. On a CUDA
device it is the mark of torch's own allocator, elsewhere ``ru_maxrss``.
"""

import json
import os
import platform
import resource
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

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

MemorySource = Literal["VmHWM", "ru_maxrss", "torch.cuda"]
"""Whose mark it is."""

WARM_TOKENS = 8
"""Of a prompt, and as many new ones, before anything is measured."""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""For the fresh process: every larger block is a mapping of its own and goes back when it is freed.
Left alone, glibc raises this limit as it goes and keeps what was freed, so that a cache may come to
lie where something else was counted already."""

_STATUS = Path("/proc/self/status")
_MARKS = Path("/proc/self/clear_refs")
_SET_BACK = "5"


@stored("NetworkSource")
@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSource:
    """Where a network comes from, in another process too."""

    config: LanguageModelConfig
    """What it is."""
    seed: int
    """Of its first values, where there is no checkpoint."""
    checkpoint: str | None
    """Where its weights are."""
    dtype: Dtype
    """What it computes in."""
    device: str
    """Where it computes."""

    def load(self) -> LanguageModel:
        """The network."""
        if self.checkpoint is None:
            loaded = LoadedModel(LanguageModel(self.config, seed=self.seed).eval(), None)
        else:
            loaded = load_checkpoint(Path(self.checkpoint))
        return loaded.moved(self.device, self.dtype).network


@stored("MemoryJob")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryJob:
    """One answer, of which the memory is measured."""

    network: NetworkSource
    """What decodes."""
    cache: CacheOptions | None
    """How the cache stores what it stores; ``None`` for transformers' growing cache."""
    batch: int
    """Answers at once."""
    prompt_tokens: int
    """Tokens that each starts from."""
    new_tokens: int
    """Tokens that each gets."""
    threads: int
    """Of torch."""
    chunk: int = DEFAULT_CHUNK
    """Tokens of the prompts that pass the network at once."""


@stored("MemoryReading")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """What one answer took."""

    source: MemorySource
    """Whose mark it is."""
    weight_bytes: int
    """Of all parameters."""
    before_bytes: int
    """Of the process with the network, before the answer."""
    peak_bytes: int
    """Of the process at its peak."""
    cache_bytes: int
    """What the cache says that it held in the end."""

    @property
    def answer_bytes(self) -> int:
        """What the answer added at the peak: the cache, and what is only needed for a moment."""
        return self.peak_bytes - self.before_bytes

    @property
    def total_bytes(self) -> int:
        """Weights and answer, without the program."""
        return self.weight_bytes + self.answer_bytes


def measure_apart(job: MemoryJob) -> MemoryReading:
    """Measure in a fresh process.

    Raises:
        ResourceError: if it ends without an answer, which is what happens where memory runs out.
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
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ResourceError(
            f"the process that measures memory ended with code {done.returncode} and said: {said}"
        )
    return from_dict(MemoryReading, json.loads(done.stdout.splitlines()[-1]))


def measure_here(job: MemoryJob) -> MemoryReading:
    """Measure in this process, whose other work would be counted with it."""
    torch.set_num_threads(job.threads)
    device = torch.device(job.network.device)
    model = job.network.load()
    weights = sum(part.numel() * part.element_size() for part in model.parameters())
    # The exported copy takes the place of the network: both at once would be counted as one.
    answerer = _Answerer(job, model)
    if job.cache is None:
        del model
    few = min(WARM_TOKENS, job.prompt_tokens), min(WARM_TOKENS, job.new_tokens)
    answerer.answer(*few)
    source = _set_mark_back(device)
    before = _read_memory(device, source, peak=False)
    answer = answerer.answer(job.prompt_tokens, job.new_tokens)
    peak = _read_memory(device, source, peak=True)
    return MemoryReading(
        source=source,
        weight_bytes=answerer.weight_bytes or weights,
        before_bytes=before,
        peak_bytes=peak,
        cache_bytes=answer.cache_bytes,
    )


class _Answerer:
    """Ours or transformers', behind one call."""

    def __init__(self, job: MemoryJob, model: LanguageModel) -> None:
        self._job = job
        self._vocabulary = model.config.vocabulary
        self._model = None if job.cache is None else model
        self._stock = StockModel(model) if job.cache is None else None
        parts = () if self._stock is None else tuple(self._stock.model.parameters())
        self.weight_bytes = sum(part.numel() * part.element_size() for part in parts)

    def answer(self, prompt_tokens: int, new_tokens: int) -> TimedAnswer:
        job = self._job
        prompts = draw_prompts(self._vocabulary, batch=job.batch, length=prompt_tokens, seed=0)
        if self._stock is not None:
            chunk = job.chunk if prompt_tokens > job.chunk else None
            return self._stock.answer(prompts, new_tokens, chunk=chunk)
        if self._model is None or job.cache is None:
            raise ValueError("expected a network with options of its cache, got none")
        options, chunk = job.cache, job.chunk
        return answer_with_cache(self._model, prompts, new_tokens, options=options, chunk=chunk)


def _set_mark_back(device: torch.device) -> MemorySource:
    """Let the mark begin again where that can be done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return "torch.cuda"
    if not _STATUS.exists():
        return "ru_maxrss"
    with suppress(OSError):
        # A mark that stays is an upper bound, and right where the answer takes more than loading.
        _MARKS.write_text(_SET_BACK)
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
