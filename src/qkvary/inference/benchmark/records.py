"""What a measurement of decoding asks and finds, as values, and their one JSON form.

Everything that was measured is kept round by round; what is printed is derived from it in
``comparisons``. Never imports torch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from qkvary.arch.caches import CacheLayout, CacheOptions, DecodeKernel
from qkvary.arch.canonical import from_dict, stored, to_dict
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.formats import Dtype
from qkvary.storage.documents import DocumentFormat

FORMAT = DocumentFormat(name="a measurement of decoding", version=1)

Runner = Literal["cache", "prefix", "transformers", "transformers-static"]
"""What answers: this project with its cache, this project running the prefix again for every token,
``generate`` of transformers with its growing cache, or with the one that it allocates."""

STOCK_RUNNERS: tuple[Runner, ...] = ("transformers", "transformers-static")


@stored("DecodeCase")
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCase:
    """What is answered."""

    variant: str
    """Canonical label."""
    context: int
    """Tokens of prompt and answer together."""
    batch: int
    """Answers at once."""
    dtype: Dtype
    """What everything is computed and stored in."""


@stored("CacheChoice")
@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """How this project's cache is to store what it stores; what is ``None`` is as it usually is."""

    layout: CacheLayout | None = None
    """What is kept of a token."""
    storage: CacheOptions | None = None
    """Where it is kept, with what belongs to quantised storage; the rest of it is not looked at."""
    kernel: DecodeKernel | None = None
    """What attends to what is stored."""

    def resolve(self, usual: CacheOptions) -> CacheOptions:
        """The options of a network whose usual ones are given."""
        return dataclasses.replace(
            self.storage or usual,
            layout=self.layout or usual.layout,
            kernel=self.kernel or usual.kernel,
        )


@stored("Effort")
@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured, and with what."""

    new_tokens: int
    """Tokens of an answer; the prompt is what the context leaves."""
    rounds: int
    """Answers of everybody to every case."""
    prefix_steps: int
    """Most new tokens that are timed when the prefix is run again, fewer at long contexts; others
    are interpolated."""
    memory_context: int | None
    """Tokens of the answers whose peak memory is measured besides that of the cases; 0 for the
    cases alone, ``None`` for no memory at all."""
    memory_chunk: int
    """Tokens of a prompt that pass the network at once where memory is measured."""
    threads: int
    """Of torch."""
    device: str
    """Where everything runs."""
    seed: int
    """Of the weights and the prompts."""


@stored("DecodeQuestion")
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeQuestion:
    """What is to be measured."""

    networks: tuple[LanguageModelConfig, ...]
    """One for each variant; a case runs it with as many positions as it needs."""
    checkpoint: str | None
    """Where the weights of the only network are; ``None`` for random ones."""
    contexts: tuple[int, ...]
    """Of the cases."""
    batches: tuple[int, ...]
    """Of the cases."""
    dtypes: tuple[Dtype, ...]
    """Of the cases."""
    caches: tuple[CacheChoice, ...]
    """How this project's cache stores what it stores; the first is compared between variants."""
    stock: tuple[Runner, ...]
    """Which of transformers' caches are measured beside it."""
    effort: Effort
    """How much is measured."""

    def __post_init__(self) -> None:
        effort = self.effort
        if not (self.networks and self.contexts and self.batches and self.dtypes and self.caches):
            raise ValueError("expected at least one network, context, batch, dtype and cache")
        for name, value, least in (
            ("batch", min(self.batches), 1),
            ("new_tokens", effort.new_tokens, 2),
            ("rounds", effort.rounds, 1),
            ("prefix_steps", effort.prefix_steps, 2),
            ("memory_chunk", effort.memory_chunk, 1),
            ("threads", effort.threads, 1),
        ):
            if value < least:
                raise ValueError(f"expected {name} of at least {least}, got {value}")
        asked = [*self.contexts, *([effort.memory_context] if effort.memory_context else [])]
        if min(asked) <= effort.new_tokens:
            raise ValueError(
                f"expected contexts with room for a prompt before {effort.new_tokens} new tokens, "
                f"got {min(asked)}"
            )


@stored("Times")
@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long answers took, one number a round."""

    seconds: tuple[float, ...]
    """By the clock on the wall, of the whole answer."""
    first_seconds: tuple[float, ...]
    """Until the first new token: TTFT."""
    cpu_seconds: tuple[float, ...]
    """Of all threads of the process, of the whole answer."""
    first_cpu_seconds: tuple[float, ...]
    """The same until the first new token."""

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, field.name)) for field in dataclasses.fields(self)}
        if len(lengths) != 1:
            raise ValueError(f"expected as many times of every kind, got {sorted(lengths)}")


@stored("SpeedRow")
@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One runner on one case, round by round."""

    case: DecodeCase
    """What was answered."""
    runner: Runner
    """Who answered."""
    cache: CacheOptions | None
    """How this project's cache stored; ``None`` for other runners."""
    times: Times
    """How long it took."""
    timed_steps: int
    """New tokens that were timed; fewer than the answer has where the rest is interpolated."""
    equal_tokens: int
    """Tokens before the first that differs from what this project answers with its cache."""
    cache_formula_bytes: int
    """By the cost model, of what was stored in the end."""
    cache_bytes: int
    """As allocated."""
    step_read_bytes: float | None
    """Weights and cache that a step reads at least, averaged over the answer."""
    parameters: int
    """Of the network that answered; copies of shared weights count in transformers."""
    notes: tuple[str, ...]
    """What must be known of it."""


@stored("MemoryRow")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """The peak memory of one answer in a process of its own."""

    case: DecodeCase
    """What was answered."""
    runner: Runner
    """Who answered."""
    cache: CacheOptions | None
    """How this project's cache stored; ``None`` for other runners."""
    source: str
    """Whose mark it is: ``VmHWM``, ``ru_maxrss`` or ``torch.cuda``."""
    new_tokens: int
    """Tokens of the answer; the prompt was the rest of the context."""
    weight_bytes: int
    """Of all parameters."""
    before_bytes: int
    """Of the process before the answer."""
    peak_bytes: int
    """Of the process at its peak."""
    cache_formula_bytes: int | None
    """By the cost model, of what was stored in the end; ``None`` for transformers."""
    cache_bytes: int
    """As allocated."""

    @property
    def answer_bytes(self) -> int:
        """What the answer added at the peak."""
        return self.peak_bytes - self.before_bytes

    @property
    def total_bytes(self) -> int:
        """Weights and answer, without the program."""
        return self.weight_bytes + self.answer_bytes


@stored("Fact")
@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing about where this was measured."""

    name: str
    """What it is about."""
    value: str
    """What is the case."""


@stored("DecodeRecord")
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRecord:
    """A question with everything that was measured."""

    question: DecodeQuestion
    """What was asked."""
    command: str
    """What somebody typed for it."""
    environment: tuple[Fact, ...]
    """Versions, processor, threads."""
    started: str
    """ISO 8601, UTC."""
    ended: str
    """ISO 8601, UTC."""
    kernels: tuple[Fact, ...]
    """What attended to each kind of call where a timing chose it."""
    stream_bytes_per_second: tuple[float, ...]
    """Reading memory in a row, once a round."""
    speed: tuple[SpeedRow, ...]
    """Every runner on every case."""
    memory: tuple[MemoryRow, ...]
    """Peak memory."""
    notes: tuple[str, ...]
    """What is missing, and why."""


def to_json(record: DecodeRecord) -> bytes:
    """The bytes of a record's file; equal records give equal bytes."""
    return FORMAT.write(to_dict(record))


def from_json(data: bytes, *, where: str) -> DecodeRecord:
    """Read what ``to_json`` wrote.

    Args:
        data: The bytes.
        where: What the file is called in messages.

    Raises:
        DamagedError: if they are no record.
        NewerFormatError: if a newer qkvary wrote it.
    """
    return FORMAT.read(data, where, lambda fields: from_dict(DecodeRecord, fields))
