"""List the variants: what each means, its equation, its costs, and what was published about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.descriptions import describe, name_cached, write_equation
from qkvary.arch.labels import format_label, format_tuple, parse_variant
from qkvary.arch.table import VARIANTS
from qkvary.arch.variants import QKV, Variant
from qkvary.cli._options import Json, Length
from qkvary.cli._output import console, print_json, printable
from qkvary.costs.cache import layer_cache_bytes_per_token
from qkvary.costs.formats import Dtype
from qkvary.costs.macs import attention_projection_macs_per_token, score_macs
from qkvary.costs.parameters import attention_parameters
from qkvary.literature.figures import PublishedQuality, published_quality
from qkvary.text.numbers import MISSING, whole

WIDE = 140
"""Columns from which on a table is easier to read than a list."""

Labels = Annotated[
    tuple[str, ...],
    Parameter(
        name="--label",
        negative=(),
        help="Only this variant, in any spelling (Q-K=V, q,k=v); repeat it for more.",
    ),
]
Width = Annotated[int, Parameter(name="--d-model", help="Width of the layer that is counted.")]
Heads = Annotated[int, Parameter(name="--num-heads", help="Query heads of that layer.")]
CacheType = Annotated[Dtype, Parameter(name="--dtype", help="Number format of the cache.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The layer that every variant is counted for."""

    d_model: int
    num_heads: int
    length: int
    dtype: Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one layer of a variant costs."""

    parameters: dict[str, int]
    macs_per_token: int
    macs_per_sequence: int
    cache_bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is listed of one variant."""

    variant: Variant
    origin: str
    remark: str
    costs: Counted | None
    refused: str | None
    """Why this variant does not fit a layer of this size."""
    published: PublishedQuality | None

    @property
    def label(self) -> str:
        """The canonical label."""
        return format_label(self.variant)


def command(
    *,
    label: Labels = (),
    d_model: Width = 512,
    num_heads: Heads = 8,
    length: Length = 1024,
    dtype: CacheType = "float32",
    json_output: Json = False,
) -> None:
    """List the variants: what each means, its equation, its costs, and what was published about it.

    Costs are those of one causal attention layer: parameters with biases, multiply-accumulates of a
    token with every pair of tokens counted, and bytes that a cache keeps of a token.
    """
    size = Size(d_model=d_model, num_heads=num_heads, length=length, dtype=dtype)
    if length < 1:
        raise ValueError(f"expected a --length of at least 1 token, got {length}")
    baseline = _build_row(QKV, size, strict=True)
    rows = list(_choose_rows(label, size))
    if json_output:
        print_json({"layer": size, "variants": [_to_dict(row) for row in rows]})
        return
    screen = console()
    if screen.width >= WIDE:
        screen.print(_draw_table(rows, baseline))
    else:
        _print_list(screen, rows, baseline)
    screen.print(
        f"\none causal layer: d_model {d_model}, {num_heads} heads, {length:,} tokens, {dtype}; "
        "shares in brackets are of QKV; s is the score scale; the output projection is left out",
        style="dim",
    )
    for note in _notes(rows):
        screen.print(Text(printable(note), style="dim"))


def _choose_rows(labels: tuple[str, ...], size: Size) -> Iterator[Row]:
    entries = {entry.label: entry for entry in VARIANTS}
    chosen = [parse_variant(label) for label in labels] or [entry.variant for entry in VARIANTS]
    for variant in chosen:
        entry = entries.get(format_label(variant))
        yield _build_row(
            variant,
            size,
            strict=bool(labels),
            origin=entry.origin if entry else "not in the table",
            remark=entry.remark if entry else "",
        )


def _build_row(
    variant: Variant, size: Size, *, strict: bool, origin: str = "", remark: str = ""
) -> Row:
    """Derive everything about a variant; where it does not fit the size, say why or raise."""
    costs, refused = None, None
    try:
        costs = _count(variant, size)
    except ValueError as error:
        if strict:
            raise
        refused = str(error)
    return Row(
        variant=variant,
        origin=origin,
        remark=remark,
        costs=costs,
        refused=refused,
        published=published_quality(format_label(variant)),
    )


def _count(variant: Variant, size: Size) -> Counted:
    layer = AttentionConfig(
        d_model=size.d_model, num_heads=size.num_heads, variant=variant, causal=True
    )
    parameters = attention_parameters(layer)
    projections = attention_projection_macs_per_token(layer) * size.length
    macs = projections + score_macs(layer, size.length, "square")
    return Counted(
        parameters={
            "weights": parameters.weights,
            "biases": parameters.biases,
            "total": parameters.total,
        },
        macs_per_token=macs // size.length,
        macs_per_sequence=macs,
        cache_bytes_per_token=layer_cache_bytes_per_token(layer, size.dtype),
    )


def _draw_table(rows: list[Row], baseline: Row) -> Table:
    drawn = Table(box=None, pad_edge=False, header_style="bold", row_styles=("", "on grey7"))
    drawn.add_column("label / tuple", no_wrap=True)
    drawn.add_column("meaning and equation", ratio=1)
    for heading in ("parameters", "MACs per token", "cached bytes per token", "published"):
        drawn.add_column(heading, justify="right")
    for row in rows:
        drawn.add_row(
            Text.assemble((row.label, "bold"), "\n", format_tuple(row.variant)),
            Text.assemble(describe(row.variant), "\n", (write_equation(row.variant), "cyan")),
            *(Text(cell) for cell in _figures(row, baseline)),
        )
    return drawn


def _figures(row: Row, baseline: Row) -> Iterator[str]:
    published = row.published.change if row.published else MISSING
    if row.costs is None or baseline.costs is None:
        yield from ("does not fit", "", name_cached(row.variant), published)
        return
    yield _share(row.costs.parameters["total"], baseline.costs.parameters["total"])
    yield _share(row.costs.macs_per_token, baseline.costs.macs_per_token)
    kept = _share(row.costs.cache_bytes_per_token, baseline.costs.cache_bytes_per_token)
    yield f"{name_cached(row.variant)}\n{kept}"
    yield published


def _share(value: int, of: int) -> str:
    return f"{whole(value)} ({100 * value / of:.3g} %)"


def _print_list(screen: Console, rows: list[Row], baseline: Row) -> None:
    for row in rows:
        parameters, macs, cached, published = _figures(row, baseline)
        screen.print(Text.assemble((row.label, "bold"), "  ", format_tuple(row.variant)))
        screen.print(Text(f"  {describe(row.variant)}"))
        screen.print(Text(f"  {write_equation(row.variant)}", style="cyan"))
        screen.print(Text(f"  parameters {parameters}, MACs per token {macs or MISSING}"))
        cached = " ".join(cached.splitlines())
        screen.print(Text(f"  cached bytes per token: {cached}; published: {published}"))


def _notes(rows: list[Row]) -> Iterator[str]:
    sources = {
        f"published: {row.published.quantity} ({row.published.source})"
        for row in rows
        if row.published
    }
    yield from sorted(sources)
    yield from (f"{row.label} does not fit: {row.refused}" for row in rows if row.refused)


def _to_dict(row: Row) -> dict[str, Any]:
    variant, costs = row.variant, row.costs
    return {
        "label": row.label,
        "tuple": format_tuple(variant),
        "meaning": describe(variant),
        "equation": write_equation(variant),
        "origin": row.origin,
        "remark": row.remark,
        "parameters": costs.parameters if costs else None,
        "macs_per_token": costs.macs_per_token if costs else None,
        "macs_per_sequence": costs.macs_per_sequence if costs else None,
        "cached": variant.cached,
        "cache_bytes_per_token": costs.cache_bytes_per_token if costs else None,
        "refused": row.refused,
        "published": row.published,
    }
