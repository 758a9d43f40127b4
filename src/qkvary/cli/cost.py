"""Count what a model costs in every variant: parameters, arithmetic, weights and cache."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from qkvary.arch.models import Model
from qkvary.cli._models import (
    Context,
    Decimal,
    EncoderTokens,
    ModelName,
    VariantLabels,
    WeightFormat,
    choose_context,
    describe_layers,
    find_model,
    notes_of,
)
from qkvary.cli._options import Json, convert_positive
from qkvary.cli._output import bar, console, print_json, print_rows, printable
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.comparison import CostRow, compare_costs
from qkvary.costs.formats import Format, parse_format
from qkvary.costs.macs import count_encoder_tokens
from qkvary.text.names import count
from qkvary.text.numbers import change, compact
from qkvary.text.units import data_size

COLUMNS = (
    ("variant", "left"),
    ("parameters", "right"),
    ("attention", "right"),
    ("MACs/token", "right"),
    ("weights", "right"),
    ("cache/token", "right"),
    ("cache", "right"),
    ("", "left"),
)
CONVENTIONS = {
    "macs_per_token": "one decoded token that attends to the whole context",
    "prefill_macs": "a prompt as long as the context, pairs that no mask hides, one token's logits",
    "square_macs": "a forward pass over the context, every pair of tokens, all logits (the papers)",
    "training_macs_per_token": "forward and backward (3 x forward), pairs that no mask hides",
    "cache_bytes_per_token": "what one token adds while no window is full",
    "cache_growth_bytes_per_token": "what a further token adds at the end of the context",
    "cache_bytes": "the whole batch at the full context",
    "stored": "how the weights of the model itself allow to store less, exactly",
    "moved_bytes_per_token": "weights, cache and writes of one decoding step over its tokens",
}

Batch = Annotated[
    int, Parameter(name="--batch", converter=convert_positive, help="Sequences at once.")
]
CacheFormat = Annotated[
    str,
    Parameter(
        name=("--dtype", "--cache"),
        help="How the cache is stored: fp32, bf16, fp16, fp8, int8, int4, int4-g32 (groups of 32).",
    ),
]


def command(
    model: ModelName,
    /,
    *,
    variant: VariantLabels = (),
    context: Context = None,
    batch: Batch = 1,
    dtype: CacheFormat = "bf16",
    weights: WeightFormat = "bf16",
    encoder_tokens: EncoderTokens = None,
    decimal: Decimal = False,
    json_output: Json = False,
) -> None:
    """Count what a model costs in every variant: parameters, arithmetic, weights and cache.

    The first row is the model as it is, the others what it would cost with its projections shared
    in another way: those would have to be trained.
    """
    known = find_model(model)
    tokens = choose_context(known, context)
    chosen = choose_candidates(known, variant, all_sharings=True)
    cache = parse_format(dtype)
    rows = compare_costs(
        chosen.rows,
        context=tokens,
        batch=batch,
        weights=parse_format(weights),
        cache=cache,
        encoder_tokens=encoder_tokens,
    )
    notes = notes_of(known, chosen, tokens, encoder_tokens=encoder_tokens)
    if json_output:
        print_json(
            {
                "model": known.name,
                "layers": describe_layers(known),
                "context": tokens,
                "encoder_tokens": count_encoder_tokens(known, encoder_tokens, tokens) or None,
                "batch": batch,
                "dtype": cache.name,
                "weights": parse_format(weights).name,
                "conventions": CONVENTIONS,
                "rows": [_to_dict(row, rows[0]) for row in rows],
                "notes": notes,
            }
        )
        return
    screen = console()
    _print_head(screen, known, tokens, batch, cache, weights)
    print_rows(screen, COLUMNS, _cells(rows, decimal=decimal))
    screen.print(Text(_legend(rows, decimal=decimal), style="dim"))
    for note in notes:
        screen.print(Text(f"note: {printable(note)}", style="dim"))


def _print_head(
    screen: Console, model: Model, tokens: int, batch: int, cache: Format, weights: str
) -> None:
    screen.print(Text(printable(model.name), style="bold"))
    screen.print(Text(f"{len(model.layers)} layers: {describe_layers(model)}", style="dim"))
    sequences = count(batch, "sequence")
    screen.print(
        Text(f"{tokens:,} tokens, {sequences}, cache in {cache.name}, weights in {weights}\n")
    )


def _cells(rows: Sequence[CostRow], *, decimal: bool) -> Iterator[Sequence[str]]:
    base = rows[0]
    most = max((row.cache_bytes or 0) for row in rows)
    for row in rows:
        total, macs = row.parameters.total, row.decode_macs.total
        held = row.cache_bytes or 0
        yield (
            row.candidate.name + (" *" if row.candidate.is_original else ""),
            _with_change(compact(total, 4), total, base.parameters.total),
            compact(row.parameters.attention, 4),
            _with_change(compact(macs, 4), macs, base.decode_macs.total),
            data_size(row.weight_bytes, decimal=decimal),
            data_size(row.cache_bytes_per_token, decimal=decimal),
            _with_change(data_size(row.cache_bytes, decimal=decimal), held, base.cache_bytes or 0),
            bar(held, most, width=12),
        )


def _legend(rows: Sequence[CostRow], *, decimal: bool) -> str:
    base = rows[0]
    parts = [
        "* the weights as they are; others would have to be trained; changes are to the first row;",
        "MACs of one decoded token at the full context.",
    ]
    if base.cache_bytes is None:
        parts.append("Nothing is decoded from a bidirectional network, so there is no cache.")
    if base.step is not None:
        parts.append(
            f"A decoding step of the model as it is moves "
            f"{data_size(base.step.moved_bytes, decimal=decimal)} for "
            f"{base.step.flops_per_byte:.3g} FLOPs a byte."
        )
    return "\n" + " ".join(parts)


def _with_change(text: str, value: float, base: float) -> str:
    changed = change(value, base)
    return text if changed in ("", "=") else f"{text} ({changed})"


def _to_dict(row: CostRow, base: CostRow) -> dict[str, Any]:
    parameters = row.parameters
    step = row.step
    return {
        "variant": row.label,
        "original": row.candidate.is_original,
        "stored": row.candidate.saving,
        "parameters": {
            "total": parameters.total,
            "embedding": parameters.embedding,
            "positions": parameters.positions,
            "attention": parameters.attention,
            "mlp": parameters.feed_forward,
            "norm": parameters.norms,
            "head": parameters.head,
            "other": parameters.other,
            "active": row.active_parameters,
        },
        "weight_bytes": row.weight_bytes,
        "macs_per_token": row.decode_macs.total,
        "prefill_macs": row.prefill_macs.to_dict(),
        "square_macs": row.square_macs.to_dict(),
        "training_macs_per_token": row.training_macs_per_token,
        "cache_bytes_per_token": _whole(row.cache_bytes_per_token),
        "cache_growth_bytes_per_token": _whole(row.cache_growth_bytes_per_token),
        "cache_bytes": row.cache_bytes,
        "moved_bytes_per_token": None if step is None else step.moved_bytes / step.batch,
        "flops_per_byte": None if step is None else step.flops_per_byte,
        "change": {
            "parameters": parameters.total - base.parameters.total,
            "macs_per_token": row.decode_macs.total - base.decode_macs.total,
            "cache_bytes": (
                None
                if row.cache_bytes is None or base.cache_bytes is None
                else row.cache_bytes - base.cache_bytes
            ),
        },
    }


def _whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and float(value).is_integer() else value
