"""Measure decoding memory and speed per variant, compared with the transformers library."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import Parameter

from decoding.networks import Sizes, check_memory, make_network
from decoding.page import decode_report
from decoding.records import (
    STOCK_RUNNERS,
    CacheChoice,
    DecodeQuestion,
    DecodeRecord,
    MeasurementSettings,
    from_json,
)
from qkvary.api.arguments import verb
from qkvary.api.options import SILENT, Terminal
from qkvary.api.results import Result
from qkvary.arch.caches import CacheLayout, CacheOptions, DecodeKernel
from qkvary.arch.named_networks import NETWORKS, canonical_name, find_network
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.costs.formats import Dtype, parse_options
from qkvary.reports.report import ReportFormat
from qkvary.storage.environment import Threads
from qkvary.storage.errors import UsageError
from qkvary.text.numbers import CountFromZero, check_seed, parse_count

DEFAULT_VARIANTS = ("QKV", "Q-K=V", "MQA", "Q-MQA")
DEFAULT_CONTEXT, DEFAULT_TOKENS, DEFAULT_MEMORY_CONTEXT = 256, 240, 2**15
SHORTEST_PROMPT = 16
MEMORY_CHUNK = 128
"""Prompt tokens per forward pass when memory is measured."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """The cases to decode; every combination is measured."""

    context: str | None = None
    """Tokens of prompt and answer together, such as 256,4k. 256 if not given."""
    batch: str = "1"
    """Batch sizes, such as 1,8."""
    dtype: str | None = None
    """Number formats, such as float32,bfloat16. If not given: as stored, or float32."""
    layout: str | None = None
    """Layout of the cache: sources, rotated, split, input, latent."""
    storage: str | None = None
    """Storage of the cache: preallocated, growing, int8-g64, int4-b32."""
    kernel: str | None = None
    """The kernel: layer, auto, folded, matmul, native, triton."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network with random weights."""

    d_model: int = 256
    """Width of the network."""
    num_layers: int = 4
    """Number of blocks."""
    num_heads: int = 4
    """Query heads."""
    vocabulary: int = 512
    """Vocabulary size."""
    seed: int = 0
    """Seed of weights and prompts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """The amount of measurement, and the device."""

    tokens: CountFromZero | None = None
    """New tokens per answer. 240, or as many as the context leaves, if not given."""
    rounds: int = 7
    """Answers per runner."""
    threads: Threads = 1
    """Threads of torch."""
    device: str = "cpu"
    """Device: cpu, cuda, cuda:1, mps."""
    memory_context: CountFromZero = DEFAULT_MEMORY_CONTEXT
    """Context at which peak memory is compared with the formula; 0 for the cases only."""
    memory: bool = True
    """Measure peak memory, each time in a new process."""
    transformers: bool = True
    """Measure transformers' generate too."""


DEFAULT_CASES = Cases()
DEFAULT_NETWORK = Network()
DEFAULT_MEASURING = Measuring()


@verb
def bench_decode(
    model: str | None = None,
    /,
    *,
    variant: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--variant", "--variants"),
            consume_multiple=(1, None),
        ),
    ] = (),
    cases: Cases = DEFAULT_CASES,
    network: Network = DEFAULT_NETWORK,
    measuring: Measuring = DEFAULT_MEASURING,
    read: Path | None = None,
    out: Path | None = None,
    terminal: Terminal = SILENT,
) -> Result[DecodeRecord]:
    """Measure decoding memory and speed per variant, compared with the transformers library.

    All runners answer the same prompts in turns, greedily: this project with its cache, the same
    network run on the whole prefix for every token, and generate of transformers with the same
    weights. Peak memory is measured in a new process for each answer.

    Args:
        model: A network with random weights by name (lm-10m, 300M), or a checkpoint by name or
            path: tiny-k, our own, a llama2.c .bin, a character model.
        variant: Variants of random networks, in any spelling. QKV Q-K=V MQA Q-MQA if not given;
            with @rotary they resemble Llama, otherwise GPT-2.
        cases: The cases to decode.
        network: The network with random weights.
        measuring: The amount of measurement.
        read: Measure nothing; show and write this record (.json).
        out: Write a file (.json, .html or .md), or all three into a folder.
        terminal: Shows what is measured.
    """
    # The renderers take longer to import than the help takes to print.
    from qkvary.reports.files import check_target, write_report

    if out is not None:
        check_target(out)
    if read is not None:
        if model is not None or variant:
            raise UsageError("expected --read without a model or variants, got both")
        record = from_json(read.read_bytes(), where=str(read))
    else:
        question = _make_question(model, variant, cases, network, measuring)
        from decoding.measure import measure

        record = measure(question, command=terminal.command or "decode", log=terminal.say)
    report = decode_report(record)
    formats: tuple[ReportFormat, ...] = ("json", "markdown", "html")
    files = () if out is None else write_report(report, out, formats)
    return Result(record, report, files=files)


def _make_question(
    model: str | None,
    labels: Sequence[str],
    cases: Cases,
    network: Network,
    measuring: Measuring,
) -> DecodeQuestion:
    """Return the question of the command line.

    Raises:
        ValueError: for incompatible options, an unknown choice, or a seed out of its range.
    """
    check_seed(network.seed)
    dtypes = _choose(cases.dtype, get_args(Dtype), "--dtype")
    longest: int | None = None
    named = None if model is None or Path(model).exists() else canonical_name(model)
    checkpoint = model if named is None else None
    if checkpoint is None:
        networks = tuple(dict.fromkeys(_make_networks(named, labels, network)))
        dtypes = dtypes or ("float32",)
    else:
        if labels or _has_sizes(network):
            raise UsageError("expected a checkpoint without --variant and sizes, got both")
        loaded = load_checkpoint(checkpoint).network
        networks, longest = (loaded.config,), loaded.config.max_tokens
        stored = str(loaded.embedding.dtype).removeprefix("torch.")
        dtypes = dtypes or _choose(stored, get_args(Dtype), "a checkpoint")
    contexts = _count(cases.context, "--context") or (
        min(DEFAULT_CONTEXT, longest or DEFAULT_CONTEXT),
    )
    _check_length(contexts, longest)
    tokens = measuring.tokens
    if tokens is None:
        tokens = max(2, min(DEFAULT_TOKENS, min(contexts) - SHORTEST_PROMPT))
    memory_context = measuring.memory_context if measuring.memory else None
    if memory_context and longest:
        memory_context = min(memory_context, longest)
    question = DecodeQuestion(
        networks=networks,
        checkpoint=checkpoint,
        contexts=contexts,
        batches=_count(cases.batch, "--batch"),
        dtypes=dtypes,
        caches=_choose_caches(cases),
        stock=STOCK_RUNNERS if measuring.transformers else (),
        settings=MeasurementSettings(
            new_tokens=tokens,
            rounds=measuring.rounds,
            prefix_steps=tokens,
            memory_context=memory_context,
            memory_chunk=MEMORY_CHUNK,
            threads=measuring.threads,
            device=measuring.device,
            seed=network.seed,
        ),
    )
    if checkpoint is not None:
        check_memory(question)
        return question
    num_layers = network.num_layers if named is None else NETWORKS[named].num_layers
    check_memory(question, num_layers=num_layers)
    return dataclasses.replace(
        question,
        networks=tuple(dataclasses.replace(one, num_layers=num_layers) for one in networks),
    )


def _make_networks(
    named: str | None, labels: Sequence[str], network: Network
) -> Iterator[LanguageModelConfig]:
    """Yield the networks of the variants, with one layer until there is memory for all.

    Raises:
        UsageError: for sizes of a network that has a name.
    """
    if named is not None and _has_sizes(network):
        raise UsageError("expected the name of a network without sizes, got both")
    sizes = Sizes(
        d_model=network.d_model,
        num_layers=1,
        num_heads=network.num_heads,
        vocabulary=network.vocabulary,
    )
    for label in labels or DEFAULT_VARIANTS:
        if named is None:
            yield make_network(label, sizes)
        else:
            yield dataclasses.replace(find_network(named, label), num_layers=1)


def _has_sizes(network: Network) -> bool:
    return network != dataclasses.replace(DEFAULT_NETWORK, seed=network.seed)


def _check_length(contexts: Sequence[int], longest: int | None) -> None:
    if longest is not None and max(contexts) > longest:
        raise UsageError(
            f"expected contexts of at most {longest:,} tokens, the maximum of the checkpoint, "
            f"got {max(contexts):,}"
        )


def _count(text: str | None, name: str) -> tuple[int, ...]:
    """Return distinct positive whole numbers."""
    if text is None:
        return ()
    counts = tuple(dict.fromkeys(parse_count(part) for part in text.split(",")))
    if min(counts) < 1:
        raise UsageError(f"expected {name} of at least 1, got 0")
    return counts


def _choose(text: str | None, choices: Iterable[str], name: str) -> tuple[Any, ...]:
    """Return distinct words out of the choices."""
    if text is None:
        return ()
    known = tuple(choices)
    words = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for word in words:
        if word not in known:
            shown = word if len(word) <= 60 else word[:57] + "..."
            raise UsageError(f"expected {name} to be one of {', '.join(known)}, got {shown!r}")
    return words


def _choose_caches(cases: Cases) -> tuple[CacheChoice, ...]:
    """Return every combination of the cache options, with defaults for those not given."""
    layouts = _choose(cases.layout, get_args(CacheLayout), "--layout") or (None,)
    kernels = _choose(cases.kernel, get_args(DecodeKernel), "--kernel") or (None,)
    storages: tuple[CacheOptions | None, ...] = (None,)
    if cases.storage is not None:
        storages = tuple(map(parse_options, dict.fromkeys(cases.storage.split(","))))
    return tuple(
        CacheChoice(layout=layout, storage=storage, kernel=kernel)
        for layout, storage, kernel in product(layouts, storages, kernels)
    )
