"""The question and results of a decode benchmark as values, with one JSON form.

Every round is stored; ``comparisons`` derives what is shown. Never imports torch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, cast

from qkvary.arch.caches import CacheLayout, CacheOptions, DecodeKernel
from qkvary.arch.canonical import from_dict, stored, stored_as, to_dict
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.formats import Dtype
from qkvary.storage.jsonvalues import DocumentFormat

FORMAT = DocumentFormat(name="a measurement of decoding", version=1)

Runner = Literal["cache", "prefix", "transformers", "transformers-static"]
"""An implementation: this project with its cache, this project running the prefix again for every
token, ``generate`` of transformers with its dynamic cache, or with its static cache."""

STOCK_RUNNERS: tuple[Runner, ...] = ("transformers", "transformers-static")


@stored("DecodeCase")
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCase:
    """One measured case."""

    variant: str
    """The canonical label."""
    context: int
    """Tokens of prompt and answer together."""
    batch: int
    dtype: Dtype

    @property
    def workload(self) -> tuple[int, int, str]:
        """The settings that all cases of a measurement have in common."""
        return self.context, self.batch, self.dtype


@stored("CacheChoice")
@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """Requested cache options; ``None`` keeps the default."""

    layout: CacheLayout | None = None
    storage: CacheOptions | None = None
    """The allocation and quantization; its other fields are ignored."""
    kernel: str | None = None
    """The attention kernel; records may name one that no longer exists."""

    def resolve(self, usual: CacheOptions) -> CacheOptions:
        """Return the options of a network, given its defaults."""
        return dataclasses.replace(
            self.storage or usual,
            layout=self.layout or usual.layout,
            kernel=cast(DecodeKernel, self.kernel or usual.kernel),
        )


@stored("Effort")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSettings:
    """The extent of the measurement and the machine settings."""

    new_tokens: int
    """Tokens of an answer; the prompt has the rest of the context."""
    rounds: int
    prefix_steps: int
    """The maximum number of timed steps when the prefix is run again, fewer at long contexts; the
    others are interpolated."""
    memory_context: int | None
    """The context whose peak memory is measured in addition to the cases'; 0 for only the cases,
    ``None`` for no memory measurement."""
    memory_chunk: int
    """Prompt tokens per forward pass where memory is measured."""
    threads: int
    device: str
    seed: int
    """The seed of the weights and the prompts."""


@stored("DecodeQuestion")
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeQuestion:
    """The cases to measure."""

    networks: tuple[LanguageModelConfig, ...]
    """One network per variant; a case sets its number of positions."""
    checkpoint: str | None
    """The weights of the only network; ``None`` for random weights."""
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    dtypes: tuple[Dtype, ...]
    caches: tuple[CacheChoice, ...]
    """The caches of this project; the first is compared between variants."""
    stock: tuple[Runner, ...]
    """The caches of transformers to measure."""
    settings: MeasurementSettings = field(metadata=stored_as("effort"))

    def __post_init__(self) -> None:
        settings = self.settings
        for name, value, least in (
            ("new_tokens", settings.new_tokens, 2),
            ("rounds", settings.rounds, 1),
            ("threads", settings.threads, 1),
        ):
            if value < least:
                raise ValueError(f"expected {name} of at least {least}, got {value}")
        asked = [*self.contexts, *([settings.memory_context] if settings.memory_context else [])]
        if min(asked) <= settings.new_tokens:
            raise ValueError(
                f"expected contexts with room for a prompt before {settings.new_tokens} new "
                f"tokens, got {min(asked)}"
            )


@stored("Times")
@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The durations of one runner's answers, one per round."""

    seconds: tuple[float, ...]
    first_seconds: tuple[float, ...]
    """Wall-clock seconds until the first new token (TTFT)."""
    cpu_seconds: tuple[float, ...]
    """CPU seconds over all threads."""
    first_cpu_seconds: tuple[float, ...]


@stored("SpeedRow")
@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """The timings of one runner on one case."""

    case: DecodeCase
    runner: Runner
    cache: CacheOptions | None
    """The cache options of this project; ``None`` for other runners."""
    times: Times
    timed_steps: int
    """Timed steps; fewer than new tokens if the others are interpolated."""
    equal_tokens: int
    """Tokens before the first difference from this project's answer with its cache."""
    cache_formula_bytes: int
    """The final size of the cache by the cost model."""
    cache_bytes: int
    """The allocated size of the cache."""
    step_read_bytes: float | None
    """The minimum bytes of weights and cache that a step reads, averaged over the answer."""
    parameters: int
    """Parameters of the network; transformers' copies of shared weights count."""
    notes: tuple[str, ...]


@stored("MemoryRow")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """The peak memory of one answer in a process of its own."""

    case: DecodeCase
    runner: Runner
    cache: CacheOptions | None
    source: str
    """The counter: ``VmHWM``, ``ru_maxrss`` or ``torch.cuda``."""
    new_tokens: int
    weight_bytes: int
    before_bytes: int
    """Memory of the process before the answer."""
    peak_bytes: int
    cache_formula_bytes: int | None
    """The final size of the cache by the cost model; ``None`` for transformers."""
    cache_bytes: int

    @property
    def answer_bytes(self) -> int:
        """The memory that the answer added at the peak."""
        return self.peak_bytes - self.before_bytes

    @property
    def total_bytes(self) -> int:
        """Weights and answer, without the program."""
        return self.weight_bytes + self.answer_bytes


@stored("Fact")
@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One property of the environment."""

    name: str
    value: str


@stored("DecodeRecord")
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRecord:
    """A question and its measurements."""

    question: DecodeQuestion
    command: str
    environment: tuple[Fact, ...]
    started: str
    ended: str
    kernels: tuple[Fact, ...] = ()
    """Kernels chosen by timing, by the kind of call, in records of earlier versions."""
    stream_bytes_per_second: tuple[float, ...]
    """The bandwidth of a sequential read, one per round."""
    speed: tuple[SpeedRow, ...]
    memory: tuple[MemoryRow, ...]
    notes: tuple[str, ...]
    """Missing measurements, with reasons."""


def to_json(record: DecodeRecord) -> bytes:
    """Return the bytes of a record's file; equal records give equal bytes."""
    return FORMAT.write(to_dict(record))


def from_json(data: bytes, *, where: str) -> DecodeRecord:
    """Read what ``to_json`` wrote.

    Raises:
        DamagedError: if the bytes are not a record.
        NewerFormatError: if a newer qkvary wrote them.
    """
    return FORMAT.read(data, where, lambda fields: from_dict(DecodeRecord, fields))
