"""The report of a rewrite: checked conditions, new layers, and differences of logits."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from qkvary.arch.labels import format_label
from qkvary.arch.models import as_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.conversions.rewriting import MOST_DIFFERENCE, LogitDifference, Rewriting
from qkvary.costs.comparison import choose_context
from qkvary.costs.macs import decode_macs
from qkvary.costs.network import Costs, network_costs
from qkvary.nn.language_model import LanguageModel
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Brief, Table, label, number, pick, plain, tabulate, word
from qkvary.text import numbers


def conversion_report(made: Rewriting, checkpoint: str) -> Report:
    """Return the report of a rewrite of a named checkpoint."""
    before, after = map(_count, (made.original, made.network))
    labels = _labels(made.original), _labels(made.network)
    tables = (
        _layers(*labels),
        _matrices(made),
        _differences(made),
        tabulate(
            "costs",
            "Costs",
            [
                {"network": name, "costs": costs, "macs": decoding_macs(one.config)}
                for name, costs, one in (
                    ("before", before, made.original),
                    ("after", after, made.network),
                )
            ],
            word("network"),
            *COST_COLUMNS,
            number(
                "cache_bytes_per_token=costs.cache_bytes_per_token",
                "cache/token",
                lambda size: plain(size or 0, numbers.data_size(size or 0)),
            ),
            notes=[note_macs(made.original.config)],
        ),
    )
    shown = tuple(table for table in tables if table.rows)

    def describe(one: LogitDifference) -> dict[str, Any]:
        return {**one._asdict(), "tokens": made.tokens}

    return Report(
        subject=f"conversion: {checkpoint}",
        question=f"What does the rewrite {made.name} change in {checkpoint}?",
        lead=f"{made.statement}; conditions that hold: {', '.join(made.conditions)}",
        sections=(Section(key="rewrite", title="Rewrite", blocks=shown, brief=True),),
        caveats=made.notes,
        data={
            "checkpoint": checkpoint,
            **pick(made, "rewrite=name statement conditions conditioning"),
            "layers": {"before": labels[0], "after": labels[1]},
            "float64": describe(made.exact),
            "stored": describe(made.stored),
            "parameters": {"before": before.parameters.total, "after": after.parameters.total},
            "cache_bytes_per_token": {
                "before": before.cache_bytes_per_token,
                "after": after.cache_bytes_per_token,
            },
            "notes": made.notes,
        },
    )


def _layers(labels: Sequence[str], changed: Sequence[str]) -> Table:
    """Return a table of old and new labels; adjacent layers with equal labels share a row."""
    pairs = zip(labels, changed, strict=True)
    rows: list[dict[str, str]] = []
    for (before, after), alike in groupby(enumerate(pairs, 1), key=lambda one: one[1]):
        layers = [layer for layer, _ in alike]
        first, last = layers[0], layers[-1]
        shown = f"{first}" if first == last else f"{first} to {last}"
        rows.append({"layers": shown, "before": before, "after": after})
    return tabulate(
        "layers",
        "Attention of each layer",
        rows,
        number("layers"),
        label("before"),
        label("after"),
    )


def _matrices(made: Rewriting) -> Table:
    return tabulate(
        "conditioning",
        "Inverted matrices, the worst-conditioned first",
        sorted(made.conditioning, key=attrgetter("number"), reverse=True),
        word("matrix"),
        number("condition_number=number", "condition number", numbers.real),
        brief=Brief(rows=3),
    )


def _differences(made: Rewriting) -> Table:
    limit = numbers.real(MOST_DIFFERENCE, 1)
    return tabulate(
        "differences",
        f"Differences between the old and the new logits on {made.tokens:,} random tokens",
        dict.fromkeys((made.exact, made.stored)),
        word("dtype", "number format"),
        number("largest", write=numbers.real),
        number("relative", write=numbers.real),
        number("changed", "best token changed", numbers.percent),
        notes=[
            (
                "“Relative” is the largest difference, divided by the root mean square of the old "
                f"logits. In float64, it must be at most {limit}."
            )
        ],
    )


COST_COLUMNS = (
    number("parameters=costs.parameters.total", write=numbers.whole),
    number("attention_parameters=costs.parameters.attention", "attention", numbers.whole),
    number("macs_per_token=macs", "MACs/token", partial(numbers.compact, digits=4)),
)
"""The columns of a table with the costs of a network before and after a conversion."""


def decoding_macs(config: LanguageModelConfig) -> int:
    """Return the MACs of a decoded token, as ``qkvary cost`` counts them by default."""
    model = as_model(config)
    return decode_macs(model, context=choose_context(model, None)).total


def note_macs(config: LanguageModelConfig) -> str:
    """Return the note of a table with the MACs of decoded tokens."""
    context = choose_context(as_model(config), None)
    return f"MACs are for decoding one token at a context of {context:,} tokens."


def _labels(network: LanguageModel) -> list[str]:
    return [format_label(layer.variant) for layer in network.config.layers]


def _count(network: LanguageModel) -> Costs:
    dtype: Any = str(network.embedding.dtype).removeprefix("torch.")
    return network_costs(network.config, dtype=dtype)
