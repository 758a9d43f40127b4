"""Measures decoding: everybody answers every case in every round, each round in another order.

Memory is measured apart, in a fresh process for each answer. Knows what is measured; what follows
from it is derived in ``comparisons``.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from qkvary.arch.caches import CacheOptions
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.formats import Dtype, dtype_bytes
from qkvary.costs.parameters import network_parameters
from qkvary.inference.benchmark.comparisons import name_place
from qkvary.inference.benchmark.measuring import (
    MemoryStream,
    Rows,
    TimedAnswer,
    answer_with_cache,
    answer_without_cache,
    choose_steps,
    count_equal,
    draw_prompts,
    usual_options,
)
from qkvary.inference.benchmark.networks import (
    Sizes,
    cache_formula_bytes,
    make_network,
    mean_step_bytes,
    name_variant,
    shares_key_and_value,
)
from qkvary.inference.benchmark.peak_memory import MemoryJob, NetworkSource, measure_apart
from qkvary.inference.benchmark.records import (
    DecodeCase,
    DecodeQuestion,
    DecodeRecord,
    Fact,
    MemoryRow,
    Runner,
    SpeedRow,
    Times,
)
from qkvary.inference.benchmark.stock_generation import StockModel
from qkvary.nn.cache import KVCache
from qkvary.nn.decoding.choice import chosen, pinned
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import machine, now, package_version
from qkvary.storage.errors import ResourceError
from qkvary.storage.packages import is_installed

Tell = Callable[[str], None]

LONG_CONTEXT, LONG_STEPS = 1024, 9
"""Beyond so many tokens running the prefix again is timed at so many of the new tokens only."""
MEMORY_TOKENS = 16
"""New tokens of an answer whose memory is measured at a long context."""
MEMORY_TURNS = 3
"""Processes in which a peak is measured; the least of them counts."""
NEEDS_TRANSFORMERS = (
    "The comparison with transformers needs it: pip install 'qkvary[hf]' brings it."
)


@dataclass(slots=True, kw_only=True)
class _Contender:
    """One runner on one case, and what it took so far."""

    case: DecodeCase
    runner: Runner
    network: LanguageModelConfig
    answer: Callable[[], TimedAnswer]
    steps: tuple[int, ...]
    """New tokens that are timed."""
    parameters: int
    cache: CacheOptions | None = None
    formula_bytes: int = 0
    notes: tuple[str, ...] = ()
    first: TimedAnswer | None = None
    """Untimed: what is compiled, chosen or allocated once is done with it."""
    timed: list[TimedAnswer] = field(default_factory=list[TimedAnswer])


def measure(question: DecodeQuestion, *, command: str, tell: Tell) -> DecodeRecord:
    """Measure everything that is asked for.

    Args:
        question: What is asked.
        command: What somebody typed for it.
        tell: Is told what comes next.

    Raises:
        UsageError: if there is no such device.
        ValueError: if a kernel is pinned that there is not, or a cache does not fit a network.
    """
    _check_machine(question)
    return _Measurement(question, tell).run(command)


def _check_machine(question: DecodeQuestion) -> None:
    """Refuse at once what a network of any size would be made for in vain."""
    pinned("auto")
    smallest = make_network("QKV", Sizes(d_model=8, num_layers=1, num_heads=1, vocabulary=2))
    NetworkSource(
        config=smallest, seed=0, checkpoint=None, dtype="float32", device=question.effort.device
    ).load()


class _Measurement:
    """One run through all cases."""

    def __init__(self, question: DecodeQuestion, tell: Tell) -> None:
        self.question = question
        self.tell = tell
        self.notes: list[str] = []
        self.bandwidths: list[float] = []
        self.speed: list[SpeedRow] = []
        self.caches: dict[str, tuple[CacheOptions, ...]] = {}
        if question.stock and not is_installed("transformers"):
            self.notes.append(NEEDS_TRANSFORMERS)
            self.question = dataclasses.replace(question, stock=())

    def run(self, command: str) -> DecodeRecord:
        question, started = self.question, now()
        with _threads(question.effort.threads):
            for context in question.contexts:
                for dtype in question.dtypes:
                    self._measure_speed(context, dtype)
            memory = tuple(self._measure_memory())
        return DecodeRecord(
            question=question,
            command=command,
            environment=tuple(_describe_environment(question)),
            kernels=tuple(_describe_kernels(question, self.speed)),
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
            seed=question.effort.seed,
            checkpoint=question.checkpoint,
            dtype=dtype,
            device=question.effort.device,
        )

    def _measure_speed(self, context: int, dtype: Dtype) -> None:
        """All variants and batches of one context and dtype."""
        question = self.question
        models = [self._source(one, context, dtype).load() for one in question.networks]
        stream = MemoryStream(question.effort.device)
        for batch in question.batches:
            fields = [list(self._contend(model, context, batch, dtype)) for model in models]
            contenders = [one for group in fields for one in group]
            self.tell(
                f"speed at {context:,} tokens, batch {batch}, {dtype}: {len(contenders)} take turns"
            )
            for one in contenders:
                one.first = one.answer()
            for turn in range(question.effort.rounds):
                self.bandwidths.append(stream.measure())
                gc.collect()
                start = turn % len(contenders)
                for one in contenders[start:] + contenders[:start]:
                    one.timed.append(one.answer())
            self.speed += [_make_row(one, group[0]) for group in fields for one in group]

    def _contend(
        self, model: LanguageModel, context: int, batch: int, dtype: Dtype
    ) -> Iterator[_Contender]:
        """Everybody who answers a case, this project with its first cache at the head."""
        effort, config = self.question.effort, model.config
        case = DecodeCase(variant=name_variant(config), context=context, batch=batch, dtype=dtype)
        length, tokens = context - effort.new_tokens, effort.new_tokens
        prompts = draw_prompts(config.vocabulary, batch=batch, length=length, seed=effort.seed)
        ours = [
            _Contender(
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
        most = effort.prefix_steps if context <= LONG_CONTEXT else LONG_STEPS
        steps = choose_steps(tokens, min(most, effort.prefix_steps))
        yield _Contender(
            case=case,
            runner="prefix",
            network=config,
            answer=lambda: answer_without_cache(model, prompts, _first_of(ours[0]).tokens, steps),
            steps=steps,
            parameters=ours[0].parameters,
        )
        yield from self._contend_stock(case, model, prompts)

    def _choose_caches(self, model: LanguageModel) -> tuple[CacheOptions, ...]:
        """The caches that are asked for, of this network, each once."""
        usual = usual_options(model)
        chosen = dict.fromkeys(choice.resolve(usual) for choice in self.question.caches)
        for options in chosen:
            # Refuses blocks that a window would cut, before anything is measured.
            KVCache(model.config.layers, max_tokens=max(self.question.contexts), options=options)
        return self.caches.setdefault(name_variant(model.config), tuple(chosen))

    def _contend_stock(
        self, case: DecodeCase, model: LanguageModel, prompts: Rows
    ) -> Iterator[_Contender]:
        """The same network in transformers, where it can be expressed there."""
        if not self.question.stock:
            return
        try:
            stock = StockModel(model)
        except ValueError as error:
            self.notes.append(f"{case.variant} has no peer in transformers: {error}.")
            return
        tokens = self.question.effort.new_tokens
        numbers = case.batch * stock.cache_numbers_per_token * (case.context - 1)
        for runner in self.question.stock:
            yield _Contender(
                case=case,
                runner=runner,
                network=model.config,
                answer=lambda runner=runner: stock.answer(
                    prompts, tokens, cache="dynamic" if runner == "transformers" else "static"
                ),
                steps=tuple(range(tokens)),
                parameters=sum(part.numel() for part in stock.model.parameters()),
                formula_bytes=numbers * dtype_bytes(case.dtype),
                notes=(f"as {stock.architecture}", *stock.notes),
            )

    def _measure_memory(self) -> Iterator[MemoryRow]:
        """Peaks of every case, and of the long context with key and value apart besides."""
        question, effort = self.question, self.question.effort
        if effort.memory_context is None:
            return
        places: list[tuple[int, int, Dtype, int]] = [
            (context, batch, dtype, effort.new_tokens)
            for context in question.contexts
            for batch in question.batches
            for dtype in question.dtypes
        ]
        long = effort.memory_context
        if long and long not in question.contexts:
            # Where a context is long, what the answer takes is the same after few steps.
            tokens = min(effort.new_tokens, MEMORY_TOKENS)
            places.append((long, question.batches[0], question.dtypes[0], tokens))
        for context, batch, dtype, tokens in places:
            self.tell(f"peak memory at {context:,} tokens, batch {batch}, {dtype}")
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
        """The caches that are asked for, and what the first would be with key and value apart."""
        caches = self.caches[name_variant(network)]
        split = dataclasses.replace(caches[0], layout="split")
        yield from caches
        if apart and shares_key_and_value(network) and split not in caches:
            yield split

    def _stock_size(self, variant: str) -> tuple[int, int] | None:
        """What tells networks in transformers apart: those of one size take the same memory."""
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
        """One row; none where its process died, which is no reason to lose the others."""
        effort = self.question.effort
        job = MemoryJob(
            network=self._source(network, case.context, case.dtype),
            cache=options,
            batch=case.batch,
            prompt_tokens=case.context - new_tokens,
            new_tokens=new_tokens,
            threads=effort.threads,
            chunk=effort.memory_chunk,
        )
        try:
            # What a process happens to hold besides only ever adds to its peak.
            readings = [measure_apart(job) for _ in range(MEMORY_TURNS)]
            reading = min(readings, key=lambda one: one.answer_bytes)
        except ResourceError as error:
            self.notes.append(f"No memory of {case.variant}, {name_place(case)}: {error}.")
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


def _first_of(one: _Contender) -> TimedAnswer:
    """The untimed answer.

    Raises:
        ValueError: if it was not given yet.
    """
    if one.first is None:
        raise ValueError("expected an answer that was given already, got none")
    return one.first


def _make_row(one: _Contender, ours: _Contender) -> SpeedRow:
    case = one.case
    told = _first_of(ours).tokens
    reference = tuple(tuple(row[step] for step in one.steps) for row in told)
    length, tokens = case.context - len(told[0]), len(told[0])
    return SpeedRow(
        case=case,
        runner=one.runner,
        cache=one.cache,
        times=Times(
            seconds=tuple(answer.whole.wall for answer in one.timed),
            first_seconds=tuple(answer.first.wall for answer in one.timed),
            cpu_seconds=tuple(answer.whole.cpu for answer in one.timed),
            first_cpu_seconds=tuple(answer.first.cpu for answer in one.timed),
        ),
        timed_steps=len(one.steps),
        equal_tokens=count_equal(reference, _first_of(one).tokens),
        cache_formula_bytes=one.formula_bytes,
        cache_bytes=_first_of(one).cache_bytes,
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
    yield Fact(name="threads", value=str(question.effort.threads))
    yield Fact(name="instructions", value=torch.backends.cpu.get_cpu_capability())
    if question.effort.device.startswith("cuda"):
        name = torch.cuda.get_device_name(question.effort.device)
        yield Fact(name="device", value=name)


def _describe_kernels(question: DecodeQuestion, speed: Iterable[SpeedRow]) -> Iterator[Fact]:
    """What a timing chose for steps like those measured, and for attention where that matters."""
    threads = f"threads {question.effort.threads}"
    known = {kind: name for kind, name in sorted(chosen().items()) if threads in kind.split(", ")}
    sizes = {f"parameters {row.parameters}" for row in speed if row.runner == "cache"}
    steps = {
        kind: name
        for kind, name in known.items()
        if kind.startswith("step, ") and sizes & set(kind.split(", "))
    }
    for kind, name in steps.items():
        yield Fact(name=kind, value=name)
    if steps and set(steps.values()) == {"step"}:
        return
    layers = [layer for network in question.networks for layer in network.layers]
    shapes = {
        f"heads {layer.num_heads}, kv {layer.num_kv_heads}, width {layer.size_per_head},"
        for layer in layers
    }
    for kind, name in known.items():
        if any(shape in kind for shape in shapes):
            yield Fact(name=kind, value=name)
