"""The report of a model's costs in every variant."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from qkvary.costs.candidates import Candidate
from qkvary.costs.comparison import CostComparison, CostRow
from qkvary.costs.engines import sequence_bytes
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import (
    Cell,
    Field,
    Table,
    look_up,
    named,
    number,
    pick,
    plain,
    tabulate,
    word,
)
from qkvary.text import names, numbers

CONVENTIONS = {
    "macs_per_token": "decoding one token that attends to the whole context",
    "prefill_macs": (
        "processing a prompt that fills the context; masked pairs are not counted, and only the "
        "logits of one token are computed"
    ),
    "square_macs": (
        "a forward pass over the context that computes every pair of tokens and all logits, as the "
        "papers count it"
    ),
    "training_macs_per_token": (
        "a forward and a backward pass, counted as three forward passes; masked pairs are not "
        "counted"
    ),
    "cache_bytes_per_token": "bytes that one token adds, as long as no attention window is full",
    "mean_cache_bytes_per_token": (
        "bytes of the cache at the full context, divided by the number of tokens in the context"
    ),
    "cache_growth_bytes_per_token": (
        "bytes that one more token adds to a cache that holds the whole context"
    ),
    "cache_bytes": "bytes of the cache of the whole batch at the full context",
    "state_bytes": "the part of cache_bytes that does not grow with the context (linear attention)",
    "stored": "the exact saving of the row, if any; it keeps the weights of the given model",
    "engines": "cache bytes of one sequence of the given model, as each engine allocates them",
    "moved_bytes_per_token": (
        "bytes read and written per decoding step, divided by the number of tokens that the step "
        "decodes"
    ),
}


def cost_report(costs: CostComparison) -> Report:
    """Return the report of a model's costs in every variant."""
    model, tokens = costs.model, names.count(costs.context, "token")
    return Report(
        subject=f"costs: {model.name}",
        question=f"What does {model.name} cost at {tokens}?",
        lead=f"{names.count(len(model.layers), 'layer')}: {costs.layers}",
        facts=(
            ("sequences", numbers.whole(costs.batch)),
            ("cache in", costs.cache.name),
            ("weights in", costs.weights.name),
        ),
        sections=(Section(key="costs", title="Variants", blocks=(_table(costs),), brief=True),),
        caveats=tuple(costs.notes),
        data=_data(costs),
    )


def _table(costs: CostComparison) -> Table:
    size = numbers.data_size
    compact = partial(numbers.compact, digits=4)

    def changed(key: str, title: str, path: str, write: Callable[[float | None], str]) -> Field:
        base = look_up(costs.rows[0], path) or 0

        def cell(value: float | None) -> Cell:
            change = numbers.change(value or 0, base)
            text = write(value)
            return plain(value or 0, text if change in ("", "=") else f"{text} ({change})")

        return number(f"{key}={path}", title, cell)

    def name(candidate: Candidate) -> Cell:
        return named(candidate.name, mark=" *" if candidate.is_original else "")

    return tabulate(
        "costs",
        "Costs of every variant",
        costs.rows,
        word("variant=candidate", write=name),
        changed("parameters", "parameters", "parameters.total", compact),
        number("attention_parameters=parameters.attention", "attention", compact),
        changed("macs_per_token", "MACs/token", "decode_macs.total", compact),
        number("weight_bytes", "weights", size),
        *_per_token(costs, size),
        changed("cache_bytes", "cache", "cache_bytes", size),
        notes=_notes(costs, size),
        main=True,
    )


def _per_token(costs: CostComparison, size: Callable[[float], str]) -> Iterator[Field]:
    """Yield the columns of cache per token.

    The mean and the growth share a column if they look the same in every row.
    """

    def mean(row: CostRow) -> Cell:
        value = costs.mean_cache_bytes_per_token(row) or 0
        return plain(value, size(value))

    key, title = "cache_growth_bytes_per_token", "cache/token"
    differ = any(mean(row).text != size(look_up(row, key) or 0) for row in costs.rows)
    below = "on average" if differ else ""
    yield number("mean_cache_bytes_per_token=", title, mean, below=below)
    if differ:
        yield number(key, title, size, below="one more")


def _notes(costs: CostComparison, size: Callable[[float], str]) -> Iterator[str]:
    base = costs.rows[0]
    yield (
        "A row marked * keeps the model's weights; other variants have to be trained. "
        "Changes are relative to the first row. MACs are for decoding one token at the full "
        "context."
    )
    if base.cache_bytes is None:
        yield "Nothing is decoded from a bidirectional network, so there is no cache."
    if base.step is not None:
        yield (
            f"A decoding step of the given model moves {size(base.step.moved_bytes)} and does "
            f"{base.step.flops_per_byte:.3g} FLOP per byte."
        )
    for row in costs.rows:
        state = costs.state_bytes(row)
        if state:
            yield (
                f"{row.candidate.name} keeps a state of {size(state)} that does not grow with the "
                "context, stored in at least 32 bits."
            )


def _data(costs: CostComparison) -> dict[str, Any]:
    encoder = costs.model.count_encoder_tokens(costs.encoder_tokens, costs.context)
    return {
        "model": costs.model.name,
        **pick(costs, "layers context"),
        "encoder_tokens": encoder or None,
        **pick(costs, "batch dtype=cache.name weights=weights.name"),
        "conventions": CONVENTIONS,
        "engines": sequence_bytes(costs.model, context=costs.context, stored_as=costs.cache),
        "rows": [
            {
                **_row_data(row, costs.rows[0]),
                "mean_cache_bytes_per_token": _whole(costs.mean_cache_bytes_per_token(row)),
                "state_bytes": costs.state_bytes(row),
            }
            for row in costs.rows
        ],
        "notes": costs.notes,
    }


def _row_data(row: CostRow, base: CostRow) -> dict[str, Any]:
    cached = row.cache_bytes is not None and base.cache_bytes is not None
    return {
        **pick(row, "variant=label original=candidate.is_original stored=candidate.saving"),
        "parameters": pick(
            row,
            "total=parameters.total embedding=parameters.embedding positions=parameters.positions "
            "attention=parameters.attention mlp=parameters.feed_forward norm=parameters.norms "
            "head=parameters.head other=parameters.other active=active_parameters",
        ),
        **pick(row, "weight_bytes macs_per_token=decode_macs.total"),
        "prefill_macs": row.prefill_macs.to_dict(),
        "square_macs": row.square_macs.to_dict(),
        "training_macs_per_token": row.training_macs_per_token,
        "cache_bytes_per_token": _whole(row.cache_bytes_per_token),
        "cache_growth_bytes_per_token": _whole(row.cache_growth_bytes_per_token),
        "cache_bytes": row.cache_bytes,
        "moved_bytes_per_token": row.step and row.step.moved_bytes / row.step.batch,
        **pick(row, "flops_per_byte=step.flops_per_byte"),
        "change": {
            "parameters": row.parameters.total - base.parameters.total,
            "macs_per_token": row.decode_macs.total - base.decode_macs.total,
            "cache_bytes": (row.cache_bytes or 0) - (base.cache_bytes or 0) if cached else None,
        },
    }


def _whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and float(value).is_integer() else value
