"""The report of a rewrite: what was checked, what became of each layer, how much logits differ."""

from collections.abc import Iterator
from typing import Any

from qkvary.arch.labels import format_label
from qkvary.conversions.rewriting import MOST_DIFFERENCE, Difference, Rewriting
from qkvary.costs.network import Costs, network_costs
from qkvary.nn.language_model import LanguageModel
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Column, Table, named, plain
from qkvary.text import numbers, units


def conversion_report(made: Rewriting, checkpoint: str) -> Report:
    """Return the report of a rewrite.

    Args:
        made: The rewrite.
        checkpoint: The name of the checkpoint.
    """
    tables = (_layers(made), _matrices(made), _differences(made), _costs(made))
    return Report(
        subject=f"conversion: {checkpoint}",
        question=f"What does {made.name} make of {checkpoint}?",
        lead=f"{made.statement}; holds: {', '.join(made.conditions)}",
        sections=(
            Section(
                key="rewrite",
                title="Rewrite",
                blocks=tuple(table for table in tables if table.rows),
                brief=True,
            ),
        ),
        caveats=made.notes,
        data=_data(made, checkpoint),
    )


def _layers(made: Rewriting) -> Table:
    """Return the labels before and after, one row for neighbours that are alike."""
    pairs = [*zip(_labels(made.original), _labels(made.network), strict=True)]
    rows: list[tuple[int, int, tuple[str, str]]] = []
    for index, pair in enumerate(pairs, 1):
        if rows and rows[-1][2] == pair:
            rows[-1] = (rows[-1][0], index, pair)
        else:
            rows.append((index, index, pair))
    return Table(
        key="layers",
        title="Attention of each layer",
        columns=(
            Column(key="layers", title="layers"),
            Column(key="before", title="before", numeric=False),
            Column(key="after", title="after", numeric=False),
        ),
        rows=tuple(
            (
                plain(f"{first}" if first == last else f"{first} to {last}"),
                named(before),
                named(after),
            )
            for first, last, (before, after) in rows
        ),
    )


def _matrices(made: Rewriting) -> Table:
    return Table(
        key="conditioning",
        title="Matrices that are inverted",
        columns=(
            Column(key="matrix", title="matrix", numeric=False),
            Column(key="condition_number", title="condition number"),
        ),
        rows=tuple(
            (plain(one.matrix), plain(one.number, numbers.real(one.number)))
            for one in made.conditioning
        ),
    )


def _differences(made: Rewriting) -> Table:
    limit = numbers.real(MOST_DIFFERENCE, 1)
    shown = dict.fromkeys((made.exact, made.stored))
    return Table(
        key="differences",
        title=f"Differences of logits on {made.tokens:,} random tokens",
        columns=(
            Column(key="dtype", title="number format", numeric=False),
            Column(key="largest", title="largest"),
            Column(key="relative", title="relative"),
            Column(key="changed", title="other best token"),
        ),
        rows=tuple(
            (
                plain(one.dtype),
                plain(one.largest, numbers.real(one.largest)),
                plain(one.relative, numbers.real(one.relative)),
                plain(one.changed, numbers.percent(one.changed)),
            )
            for one in shown
        ),
        notes=(f"Relative to the root mean square; at most {limit} in float64.",),
    )


def _costs(made: Rewriting) -> Table:
    def write(network: LanguageModel, name: str) -> tuple[Any, ...]:
        found = _count(network)
        size = found.cache_bytes_per_token or 0
        return (
            plain(name),
            plain(found.parameters.total, numbers.whole(found.parameters.total)),
            plain(found.parameters.attention, numbers.whole(found.parameters.attention)),
            plain(found.macs_per_token, numbers.compact(found.macs_per_token)),
            plain(size, units.data_size(size)),
        )

    return Table(
        key="costs",
        title="Costs",
        columns=(
            Column(key="network", title="network", numeric=False),
            Column(key="parameters", title="parameters"),
            Column(key="attention_parameters", title="attention"),
            Column(key="macs_per_token", title="MACs/token"),
            Column(key="cache_bytes_per_token", title="cache/token"),
        ),
        rows=(write(made.original, "before"), write(made.network, "after")),
    )


def _labels(network: LanguageModel) -> Iterator[str]:
    return (format_label(layer.variant) for layer in network.config.layers)


def _count(network: LanguageModel) -> Costs:
    dtype: Any = str(network.embedding.dtype).removeprefix("torch.")
    return network_costs(network.config, dtype=dtype)


def _data(made: Rewriting, checkpoint: str) -> dict[str, Any]:
    def describe(one: Difference) -> dict[str, Any]:
        return {**one._asdict(), "tokens": made.tokens}

    return {
        "checkpoint": checkpoint,
        "rewrite": made.name,
        "statement": made.statement,
        "conditions": made.conditions,
        "conditioning": made.conditioning,
        "layers": {"before": [*_labels(made.original)], "after": [*_labels(made.network)]},
        "float64": describe(made.exact),
        "stored": describe(made.stored),
        "parameters": {
            "before": _count(made.original).parameters.total,
            "after": _count(made.network).parameters.total,
        },
        "cache_bytes_per_token": {
            "before": _count(made.original).cache_bytes_per_token,
            "after": _count(made.network).cache_bytes_per_token,
        },
        "notes": made.notes,
    }
