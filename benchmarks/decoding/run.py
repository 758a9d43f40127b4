"""Measure decoding: memory and speed per variant, compared with transformers and no cache."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cyclopts import Parameter

from decoding.networks import Sizes, check_memory, make_network
from decoding.page import decode_report
from decoding.records import (
    STOCK_RUNNERS,
    CacheChoice,
    DecodeQuestion,
    MeasurementSettings,
    from_json,
)
from qkvary.arch.caches import CacheLayout, CacheOptions, DecodeKernel
from qkvary.arch.named_networks import NETWORKS, canonical_name, find_network
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.cli._options import (
    Device,
    Json,
    complete_checkpoint,
    convert_threads,
    counted,
    options,
    variant_labels,
)
from qkvary.cli._output import command_line, console, print_line, show
from qkvary.costs.formats import Dtype, parse_storage
from qkvary.storage.errors import UsageError
from qkvary.text.ranges import check_seed
from qkvary.text.units import parse_count

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

DEFAULT_VARIANTS = ("QKV", "Q-K=V", "MQA", "Q-MQA")
DEFAULT_CONTEXT, DEFAULT_TOKENS, DEFAULT_MEMORY_CONTEXT = 256, 240, 2**15
SHORTEST_PROMPT = 16
MEMORY_CHUNK = 128
"""Prompt tokens per forward pass when memory is measured."""


@options
class Cases:
    """The cases to decode; every combination is measured."""

    context: Annotated[
        str | None,
        Parameter(help="Tokens of prompt and answer together, such as 256,4k. 256 if not given."),
    ] = None
    batch: Annotated[str, Parameter(help="Batch sizes, such as 1,8.")] = "1"
    dtype: Annotated[
        str | None,
        Parameter(help="Number formats, such as float32,bfloat16. As stored, or float32."),
    ] = None
    layout: Annotated[
        str | None, Parameter(help=f"Contents of the cache: {', '.join(get_args(CacheLayout))}.")
    ] = None
    storage: Annotated[
        str | None, Parameter(help="Its storage: preallocated, growing, int8-g64, int4-b32.")
    ] = None
    kernel: Annotated[
        str | None, Parameter(help=f"The kernel: {', '.join(get_args(DecodeKernel))}.")
    ] = None


@options
class Network:
    """The network with random weights."""

    d_model: Annotated[int, Parameter(help="Width.")] = 256
    num_layers: Annotated[int, Parameter(help="Blocks.")] = 4
    num_heads: Annotated[int, Parameter(help="Query heads.")] = 4
    vocabulary: Annotated[int, Parameter(help="Vocabulary size.")] = 512
    seed: Annotated[int, Parameter(help="Seed of weights and prompts.")] = 0


@options
class Measuring:
    """The amount of measurement, and the device."""

    tokens: Annotated[
        int | None,
        counted("New tokens per answer. 240, or as many as the context leaves, if not given."),
    ] = None
    rounds: Annotated[int, Parameter(help="Answers per runner.")] = 7
    threads: Annotated[int, Parameter(converter=convert_threads, help="Threads of torch.")] = 1
    device: Device = "cpu"
    memory_context: Annotated[
        int,
        counted("Context at which peak memory is compared with the formula; 0 for the cases only."),
    ] = DEFAULT_MEMORY_CONTEXT
    memory: Annotated[
        bool,
        Parameter(negative="--no-memory", help="Measure peak memory, each time in a new process."),
    ] = True
    transformers: Annotated[
        bool, Parameter(negative="--no-transformers", help="Measure transformers' generate too.")
    ] = True


DEFAULT_CASES = Cases()
DEFAULT_NETWORK = Network()
DEFAULT_MEASURING = Measuring()

Variants = Annotated[
    tuple[str, ...],
    variant_labels(
        "Variants of random networks, in any spelling. QKV Q-K=V MQA Q-MQA if not given; with "
        "@rotary they resemble Llama, otherwise GPT-2.",
        show_default=False,
    ),
]


def complete_model(context: "CompletionContext") -> Iterator[str]:
    """Yield the names of networks and checkpoints, and matching paths, for the shell."""
    yield from NETWORKS
    yield from complete_checkpoint(context)


Model = Annotated[
    str | None,
    Parameter(
        help="A network with random weights by name (lm-10m, 300M), or a checkpoint by name or "
        "path: tiny-k, our own, a llama2.c .bin, a character model.",
        completer=complete_model,
    ),
]
Target = Annotated[
    Path | None,
    Parameter(
        name="--out",
        help="Write a file (.json, .html or .md), or all three into a folder.",
    ),
]
Stored = Annotated[
    Path | None, Parameter(help="Measure nothing; show and write this record (.json).")
]


def command(
    model: Model = None,
    /,
    *,
    variant: Variants = (),
    cases: Cases = DEFAULT_CASES,
    network: Network = DEFAULT_NETWORK,
    measuring: Measuring = DEFAULT_MEASURING,
    read: Stored = None,
    out: Target = None,
    json_output: Json = False,
) -> None:
    """Measure decoding: memory and speed per variant, compared with transformers and no cache.

    All runners answer the same prompts in turns, greedily: this project with its cache, the same
    network run on the whole prefix for every token, and generate of transformers with the same
    weights. Peak memory is measured in a new process for each answer.
    """
    if out is not None:
        from qkvary.reports.files import check_target

        check_target(out)
    if read is not None:
        if model is not None or variant:
            raise UsageError("expected --read without a model or variants, got both")
        record = from_json(read.read_bytes(), where=str(read))
    else:
        question = _make_question(model, variant, cases, network, measuring)

        def log(text: str) -> None:
            if not json_output:
                print_line(console(sys.stderr), text, "dim")

        from decoding.measure import measure

        record = measure(
            question,
            command=command_line("bench decode", "qkvary bench decode"),
            log=log,
        )
    report = decode_report(record)
    show(report, json_output=json_output, target=out, formats=("json", "markdown", "html"))


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
            raise UsageError(f"expected {name} out of {', '.join(known)}, got {shown!r}")
    return words


def _choose_caches(cases: Cases) -> tuple[CacheChoice, ...]:
    """Return every combination of the cache options, with defaults for those not given."""
    layouts = _choose(cases.layout, get_args(CacheLayout), "--layout") or (None,)
    kernels = _choose(cases.kernel, get_args(DecodeKernel), "--kernel") or (None,)
    storages: tuple[CacheOptions | None, ...] = (None,)
    if cases.storage is not None:
        storages = tuple(map(parse_storage, dict.fromkeys(cases.storage.split(","))))
    return tuple(
        CacheChoice(layout=layout, storage=storage, kernel=kernel)
        for layout, storage, kernel in product(layouts, storages, kernels)
    )
