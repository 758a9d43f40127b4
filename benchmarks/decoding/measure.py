"""The decode benchmark: all runners answer every case in every round, in rotating order.

Memory is measured in a fresh process per answer. ``comparisons`` derives the results.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from decoding.comparisons import describe_workload
from decoding.memory import MemoryJob, NetworkSource, measure_in_subprocess
from decoding.networks import (
    Sizes,
    cache_formula_bytes,
    make_network,
    mean_step_bytes,
    name_variant,
    shares_key_and_value,
)
from decoding.records import (
    DecodeCase,
    DecodeQuestion,
    DecodeRecord,
    Fact,
    MemoryRow,
    Runner,
    SpeedRow,
    Times,
)
from qkvary.arch.caches import CacheOptions
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.formats import Dtype
from qkvary.costs.parameters import network_parameters
from qkvary.nn.cache import KVCache
from qkvary.nn.decoding.decode import pinned
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import machine, now, package_version
from qkvary.storage.errors import ResourceError
from qkvary.storage.packages import is_installed
from timing.answers import (
    STREAM_BYTES,
    Rows,
    TimedAnswer,
    answer_with_cache,
    answer_without_cache,
    choose_steps,
    count_equal,
    default_options,
    draw_prompts,
    measure_bandwidth,
)
from timing.stock_generation import StockCache, StockModel

Log = Callable[[str], None]

LONG_CONTEXT, LONG_STEPS = 1024, 9
"""Above this context, so many steps of running the prefix again are timed."""
MEMORY_TOKENS = 16
"""New tokens of an answer whose memory is measured at a long context."""
MEMORY_PROCESSES = 3
"""Processes per peak; the minimum counts."""
NEEDS_TRANSFORMERS = (
    "The comparison with transformers needs the extra hf: pip install 'qkvary[hf]'."
)


@dataclass(slots=True, kw_only=True)
class _BenchmarkedRunner:
    case: DecodeCase
    runner: Runner
    network: LanguageModelConfig
    answer: Callable[[], TimedAnswer]
    steps: tuple[int, ...]
    """The steps that are timed."""
    parameters: int
    cache: CacheOptions | None = None
    formula_bytes: int = 0
    notes: tuple[str, ...] = ()
    answers: list[TimedAnswer] = field(default_factory=list[TimedAnswer])
    """The warm-up answer, then one of each round."""


def measure(question: DecodeQuestion, *, command: str, log: Log) -> DecodeRecord:
    """Run the benchmark.

    Args:
        question: The cases and settings.
        command: The command line, for the record.
        log: Called with a line before each step.

    Raises:
        UsageError: if the device does not exist.
        ValueError: if a pinned kernel does not exist, or a cache does not fit a network.
    """
    _check_machine(question)
    return _Measurement(question, log).run(command)


def _check_machine(question: DecodeQuestion) -> None:
    """Reject a missing device or kernel before any network is built."""
    pinned("auto")
    smallest = make_network("QKV", Sizes(d_model=8, num_layers=1, num_heads=1, vocabulary=2))
    NetworkSource(
        config=smallest, seed=0, checkpoint=None, dtype="float32", device=question.settings.device
    ).load()


class _Measurement:
    def __init__(self, question: DecodeQuestion, log: Log) -> None:
        self.question = question
        self.log = log
        self.notes: list[str] = []
        self.bandwidths: list[float] = []
        self.speed: list[SpeedRow] = []
        self.caches: dict[str, tuple[CacheOptions, ...]] = {}
        if question.stock and not is_installed("transformers"):
            self.notes.append(NEEDS_TRANSFORMERS)
            self.question = dataclasses.replace(question, stock=())

    def run(self, command: str) -> DecodeRecord:
        question, started = self.question, now()
        # Between rounds only what the answers leave is looked through, not every library.
        gc.freeze()
        with _threads(question.settings.threads):
            for context in question.contexts:
                for dtype in question.dtypes:
                    self._measure_speed(context, dtype)
            memory = tuple(self._measure_memory())
        return DecodeRecord(
            question=question,
            command=command,
            environment=tuple(_describe_environment(question)),
            started=started,
            ended=now(),
            stream_bytes_per_second=tuple(self.bandwidths),
            speed=tuple(self.speed),
            memory=memory,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _source(self, network: LanguageModelConfig, context: int, dtype: Dtype) -> NetworkSource:
        question = self.question
        if question.checkpoint is None:
            network = dataclasses.replace(network, max_tokens=context)
        return NetworkSource(
            config=network,
            seed=question.settings.seed,
            checkpoint=question.checkpoint,
            dtype=dtype,
            device=question.settings.device,
        )

    def _measure_speed(self, context: int, dtype: Dtype) -> None:
        question = self.question
        models = [self._source(one, context, dtype).load() for one in question.networks]
        streamed = torch.ones(STREAM_BYTES // 4, device=question.settings.device)
        for batch in question.batches:
            fields = [list(self._case_runners(model, context, batch, dtype)) for model in models]
            runners = [one for group in fields for one in group]
            self.log(
                f"speed at {context:,} tokens, batch {batch}, {dtype}: {len(runners)} take turns"
            )
            for one in runners:
                one.answers.append(one.answer())
            for turn in range(question.settings.rounds):
                self.bandwidths.append(measure_bandwidth(streamed))
                gc.collect()
                start = turn % len(runners)
                for one in runners[start:] + runners[:start]:
                    one.answers.append(one.answer())
            self.speed += [_make_row(one, group[0]) for group in fields for one in group]

    def _case_runners(
        self, model: LanguageModel, context: int, batch: int, dtype: Dtype
    ) -> Iterator[_BenchmarkedRunner]:
        """Yield all runners of a case, beginning with this project's first cache."""
        settings, config = self.question.settings, model.config
        case = DecodeCase(variant=name_variant(config), context=context, batch=batch, dtype=dtype)
        length, tokens = context - settings.new_tokens, settings.new_tokens
        prompts = draw_prompts(config.vocabulary, batch=batch, length=length, seed=settings.seed)
        ours = [
            _BenchmarkedRunner(
                case=case,
                runner="cache",
                network=config,
                answer=lambda options=options: answer_with_cache(
                    model, prompts, tokens, options=options
                ),
                steps=tuple(range(tokens)),
                parameters=network_parameters(config).total,
                cache=options,
                formula_bytes=cache_formula_bytes(
                    config, options, tokens=context - 1, batch=batch, dtype=dtype
                ),
            )
            for options in self._choose_caches(model)
        ]
        yield from ours
        most = settings.prefix_steps if context <= LONG_CONTEXT else LONG_STEPS
        steps = choose_steps(tokens, min(most, settings.prefix_steps))
        yield _BenchmarkedRunner(
            case=case,
            runner="prefix",
            network=config,
            answer=lambda: answer_without_cache(model, prompts, ours[0].answers[0].tokens, steps),
            steps=steps,
            parameters=ours[0].parameters,
        )
        yield from self._stock_runners(case, model, prompts)

    def _choose_caches(self, model: LanguageModel) -> tuple[CacheOptions, ...]:
        usual = default_options(model)
        chosen = dict.fromkeys(choice.resolve(usual) for choice in self.question.caches)
        for options in chosen:
            # Rejects blocks that a window would split, before anything is measured.
            KVCache(model.config.layers, max_tokens=max(self.question.contexts), options=options)
        return self.caches.setdefault(name_variant(model.config), tuple(chosen))

    def _stock_runners(
        self, case: DecodeCase, model: LanguageModel, prompts: Rows
    ) -> Iterator[_BenchmarkedRunner]:
        """Yield the same network in transformers, if it can be expressed there."""
        if not self.question.stock:
            return
        try:
            stock = StockModel(model)
        except ValueError as error:
            self.notes.append(f"{case.variant} has no equivalent in transformers: {error}.")
            return
        tokens, stored = self.question.settings.new_tokens, case.context - 1
        for runner in self.question.stock:
            cache: StockCache = "dynamic" if runner == "transformers" else "static"
            yield _BenchmarkedRunner(
                case=case,
                runner=runner,
                network=model.config,
                answer=lambda cache=cache: stock.answer(prompts, tokens, cache=cache),
                steps=tuple(range(tokens)),
                parameters=sum(part.numel() for part in stock.model.parameters()),
                formula_bytes=case.batch
                * stock.cache_formula_bytes(cache, tokens=stored, dtype=case.dtype),
                notes=(f"as {stock.architecture}", *stock.notes),
            )

    def _measure_memory(self) -> Iterator[MemoryRow]:
        question, settings = self.question, self.question.settings
        if settings.memory_context is None:
            return
        places: list[tuple[int, int, Dtype, int]] = [
            (context, batch, dtype, settings.new_tokens)
            for context in question.contexts
            for batch in question.batches
            for dtype in question.dtypes
        ]
        long = settings.memory_context
        if long and long not in question.contexts:
            # At a long context, few steps take as much memory as many.
            tokens = min(settings.new_tokens, MEMORY_TOKENS)
            places.append((long, question.batches[0], question.dtypes[0], tokens))
        for context, batch, dtype, tokens in places:
            self.log(f"peak memory at {context:,} tokens, batch {batch}, {dtype}")
            seen: set[tuple[int, int]] = set()
            for network in question.networks:
                case = DecodeCase(
                    variant=name_variant(network), context=context, batch=batch, dtype=dtype
                )
                for options in self._stored(network, apart=context == long):
                    yield from self._measure_peak(network, case, options, tokens)
                size = self._stock_size(case.variant)
                if size is not None and size not in seen:
                    seen.add(size)
                    yield from self._measure_peak(network, case, None, tokens)

    def _stored(self, network: LanguageModelConfig, *, apart: bool) -> Iterator[CacheOptions]:
        """Yield the requested caches, and at the long context the first with split K and V."""
        caches = self.caches[name_variant(network)]
        split = dataclasses.replace(caches[0], layout="split")
        yield from caches
        if apart and shares_key_and_value(network) and split not in caches:
            yield split

    def _stock_size(self, variant: str) -> tuple[int, int] | None:
        """Return the size of a network in transformers; equal sizes are measured once."""
        rows = (row for row in self.speed if row.runner == "transformers")
        return next(
            (
                (row.parameters, row.cache_bytes // row.case.batch)
                for row in rows
                if row.case.variant == variant
            ),
            None,
        )

    def _measure_peak(
        self,
        network: LanguageModelConfig,
        case: DecodeCase,
        options: CacheOptions | None,
        new_tokens: int,
    ) -> Iterator[MemoryRow]:
        """Yield one row; none if the process died, so that the other rows are kept."""
        settings = self.question.settings
        job = MemoryJob(
            network=self._source(network, case.context, case.dtype),
            cache=options,
            batch=case.batch,
            prompt_tokens=case.context - new_tokens,
            new_tokens=new_tokens,
            threads=settings.threads,
            chunk=settings.memory_chunk,
        )
        try:
            # Other memory of the process only raises the peak.
            readings = [measure_in_subprocess(job) for _ in range(MEMORY_PROCESSES)]
            reading = min(readings, key=lambda one: one.peak_bytes - one.before_bytes)
        except ResourceError as error:
            self.notes.append(
                f"No memory measurement of {case.variant}, {describe_workload(case)}: {error}."
            )
            return
        stored = case.context - 1
        formula = (
            None
            if options is None
            else cache_formula_bytes(
                network, options, tokens=stored, batch=case.batch, dtype=case.dtype
            )
        )
        yield MemoryRow(
            case=case,
            runner="transformers" if options is None else "cache",
            cache=options,
            source=reading.source,
            new_tokens=new_tokens,
            weight_bytes=reading.weight_bytes,
            before_bytes=reading.before_bytes,
            peak_bytes=reading.peak_bytes,
            cache_formula_bytes=formula,
            cache_bytes=reading.cache_bytes,
        )


@contextmanager
def _threads(count: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _make_row(one: _BenchmarkedRunner, ours: _BenchmarkedRunner) -> SpeedRow:
    case, warmup, timed = one.case, one.answers[0], one.answers[1:]
    answer = ours.answers[0].tokens
    reference = tuple(tuple(row[step] for step in one.steps) for row in answer)
    length, tokens = case.context - len(answer[0]), len(answer[0])
    return SpeedRow(
        case=case,
        runner=one.runner,
        cache=one.cache,
        times=Times(
            seconds=tuple(one.whole.wall for one in timed),
            first_seconds=tuple(one.first.wall for one in timed),
            cpu_seconds=tuple(one.whole.cpu for one in timed),
            first_cpu_seconds=tuple(one.first.cpu for one in timed),
        ),
        timed_steps=len(one.steps),
        equal_tokens=count_equal(reference, warmup.tokens),
        cache_formula_bytes=one.formula_bytes,
        cache_bytes=warmup.cache_bytes,
        step_read_bytes=(
            None
            if one.cache is None
            else mean_step_bytes(
                one.network,
                one.cache,
                prompt=length,
                tokens=tokens,
                batch=case.batch,
                dtype=case.dtype,
            )
        ),
        parameters=one.parameters,
        notes=one.notes,
    )


def _describe_environment(question: DecodeQuestion) -> Iterator[Fact]:
    for name, value in machine().items():
        if value is not None:
            yield Fact(name=name, value=str(value))
    if question.stock:
        yield Fact(name="transformers", value=str(package_version("transformers")))
    yield Fact(name="threads", value=str(question.settings.threads))
    yield Fact(name="instructions", value=torch.backends.cpu.get_cpu_capability())
    if question.settings.device.startswith("cuda"):
        name = torch.cuda.get_device_name(question.settings.device)
        yield Fact(name="device", value=name)
