"""Measure what a quantised cache costs a checkpoint: divergence and perplexity by bit width."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from qkvary.api.arguments import verb
from qkvary.api.options import (
    SILENT,
    Checkpoint,
    CheckpointTokenizer,
    Terminal,
    open_checkpoint,
)
from qkvary.api.results import Result
from qkvary.arch.caches import CacheLayout
from qkvary.costs.formats import format_options, parse_options
from qkvary.data.tokenizers import DOCUMENT_END
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Cell, Table, number, plain, tabulate, word
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import read_file
from qkvary.text.numbers import Count, fixed, parse_count, percent, whole

if TYPE_CHECKING:
    from decoding.cache_quality import CacheMeasurement, CacheQuality
    from qkvary.data.tokenizers import Tokenizer

DEFAULT_CONTEXTS = (128, 512)
"""Tokens per window, up to the maximum of the network, which is added."""
DEFAULT_TOKENS = 4096
"""Tokens to decode with each storage, of a network small enough."""
DEFAULT_PRODUCTS = 2**41
"""Tokens times parameters over all storages and contexts: some minutes on a few cores."""
DEFAULT_STORAGES = (
    "int8-g64,int8-b32,int8-g64-rot,int8-b32-rot,int4-g32,int4-b32,int4-g32-rot,int4-b32-rot"
)


@verb
def bench_quantized(
    checkpoint: Checkpoint,
    /,
    *,
    text: Path,
    context: str | None = None,
    storage: str = DEFAULT_STORAGES,
    layout: CacheLayout = "sources",
    tokens: Count | None = None,
    tokenizer: CheckpointTokenizer = None,
    terminal: Terminal = SILENT,
) -> Result[list["CacheMeasurement"]]:
    """Measure what a quantised cache costs a checkpoint: divergence and perplexity by bit width.

    The text is cut into windows that do not overlap. Each is decoded token by token from an empty
    cache; the divergence is from the same network without rounding. int8 should stay within
    a median of 1e-3 nats, a 99th percentile of 1e-2, 0.2 % of perplexity and 99 % of top tokens.

    Args:
        checkpoint: The checkpoint.
        text: A file of text that the network was not trained on.
        context: Tokens per window, such as 128,1k. If not given, those of 128, 512 and the maximum
            for which the text suffices and decoding takes minutes.
        storage: Bits and scales: int8-g64 (by token and 64 channels), int4-b32 (by channel over 32
            tokens); -r16 leaves the newest 16 tokens unquantised, -rot rotates first.
        layout: What the cache stores.
        tokens: Maximum number of tokens to decode with each storage and context; 4k if not given,
            fewer for a large network.
        tokenizer: The tokenizer of a checkpoint without one.
        terminal: Shows the progress.
    """
    from decoding.cache_quality import measure_text

    caches = [
        dataclasses.replace(parse_options(part), layout=layout) for part in storage.split(",")
    ]
    loaded, name = open_checkpoint(checkpoint, tokenizer, speaks=True)
    network = loaded.network
    own = cast("Tokenizer", loaded.tokenizer)
    documents = _read(text).split(DOCUMENT_END)
    if len(documents) > 1:
        documents = [document.strip() for document in documents]
    encoded = [token for document in documents if document for token in own.encode(document)]
    parameters = sum(one.numel() for one in network.parameters())
    budget = DEFAULT_PRODUCTS // (parameters * (len(caches) + 1))
    longest = min(network.config.max_tokens, len(encoded) - 1)
    contexts = choose_contexts(context, longest, budget)
    most = min(DEFAULT_TOKENS, budget // len(contexts)) if tokens is None else tokens
    rows: list[CacheMeasurement] = []
    with terminal.show_progress("measuring", "caches") as on_progress:
        for row in measure_text(network, encoded, caches, contexts=contexts, most_tokens=most):
            rows.append(row)
            on_progress(len(rows), len(contexts) * len(caches))
    report = Report(
        subject=f"measurement: rounded caches of {name}",
        question=f"What does a rounded cache cost {name}?",
        sections=(Section(key="storages", title="Storages", blocks=(_table(rows),), brief=True),),
        data={
            "checkpoint": name,
            "text": text,
            "text_tokens": len(encoded),
            "layout": layout,
            "storages": [describe(row) for row in rows],
        },
    )
    return Result(rows, report)


def _read(path: Path) -> str:
    """Read a text.

    Raises:
        UsageError: if the file cannot be read, or is not text.
    """
    try:
        return read_file(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"expected --text with a file in UTF-8, got {path}, which is not at byte "
            f"{error.start:,}"
        ) from None


def describe(row: "CacheMeasurement") -> dict[str, Any]:
    """Return all figures of a storage by name."""
    quality = row.quality
    return {
        "storage": format_options(row.options),
        **dataclasses.asdict(quality),
        "perplexity_change": quality.perplexity_change,
        "drifts": quality.drifts,
        "meets_int8_gate": quality.meets_int8_gate,
    }


def choose_contexts(text: str | None, longest: int, budget: int) -> list[int]:
    """Return the requested contexts, or the first default ones whose tokens are within a budget."""
    if text is not None:
        return [parse_count(part) for part in text.split(",")]
    contexts = sorted({*(count for count in DEFAULT_CONTEXTS if count < longest), longest})
    sums = accumulate(contexts)
    affordable = [count for count, all_ in zip(contexts, sums, strict=True) if all_ <= budget]
    return affordable or [min(contexts[0], max(1, budget))]


def _table(rows: "Sequence[CacheMeasurement]") -> Table:
    note = (
        f"{rows[-1].quality.windows} windows of the longest context. KL in nats; bits of a stored "
        "number with its scales, at the end of a window; slopes in the later half of a window, "
        "± two errors."
    )
    exponent = "{:.1e}".format
    return tabulate(
        "storages",
        "Storages",
        rows,
        word("storage=options", "storage", format_options),
        number("context=quality.context", "context", whole),
        number("bits=quality.bits_per_number", "bits", partial(fixed, decimals=2)),
        number("median_kl=quality.median_kl", "median KL", exponent),
        number("p99_kl=quality.p99_kl", "99 %", exponent),
        number("mean_kl=quality.mean_kl", "mean", exponent),
        number(
            "change=quality.perplexity_change",
            "perplexity",
            partial(percent, decimals=2, sign=True),
        ),
        number("top1=quality.top1", "top token", percent),
        number("slope=quality", "KL per 1,000 positions", _slope),
        number("gate=", "int8 gate", _judge),
        notes=[note],
        main=True,
    )


def _slope(quality: "CacheQuality") -> Cell:
    error = 2 * quality.kl_slope_error
    return plain(quality.kl_slope, f"{quality.kl_slope:+.1e} ± {error:.0e}")


def _judge(row: "CacheMeasurement") -> Cell:
    """Judge 8-bit codes; others have no gate."""
    if row.options.bits != 8:
        return plain(None)
    return plain("met" if row.quality.meets_int8_gate else "missed")
