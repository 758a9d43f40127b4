"""The report of the table of variants: meaning, equation, costs of one layer, published quality."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.descriptions import describe, name_cached
from qkvary.arch.equations import define_symbols, write_equation
from qkvary.arch.labels import as_variant, format_label, format_tuple
from qkvary.arch.models import Model
from qkvary.arch.parts import check_word
from qkvary.arch.table import VARIANTS
from qkvary.arch.terms import CORES
from qkvary.arch.variants import QKV, Variant
from qkvary.costs.cache import layer_cache_bytes_per_token, layer_state_bytes
from qkvary.costs.formats import Dtype
from qkvary.costs.macs import attention_projection_macs_per_token, score_macs
from qkvary.costs.parameters import attention_parameters
from qkvary.planning.quality import PublishedQuality, published_quality
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Brief, Cell, named, number, pick, plain, tabulate, word
from qkvary.text import numbers
from qkvary.text.numbers import MISSING, whole

_BRIEF = Brief(
    columns=("label", "tuple", "parameters", "cache_bytes_per_token"),
    rows=next(place for place, one in enumerate(VARIANTS) if "@" in one.label),
    notes=1,
    below=False,
)
"""The part shown without ``--full``: only the sharings, without positions, windows and cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """The causal attention layer whose costs are counted for every variant."""

    d_model: int
    num_heads: int
    length: int
    dtype: Dtype
    head_dim: int | None = None
    bias: bool = True
    out_bias: bool = True
    model: str | None = None
    """The model whose layers have these sizes, if one was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """The costs of one layer of a variant."""

    parameters: dict[str, int]
    macs_per_token: int
    macs_per_sequence: int
    cache_bytes_per_token: int | None
    """Cache bytes per token; ``None`` for a variant that has no causal form, and so no cache."""
    state_bytes: int
    """Bytes of a state of fixed size that replaces a cache."""


def choose_layer(
    model: Model | None,
    *,
    d_model: int | None,
    num_heads: int | None,
    length: int,
    dtype: Dtype,
) -> LayerSize:
    """Return a layer of the given sizes, or one like the first of a model."""
    check_word("dtype", dtype, get_args(Dtype))
    if model is None:
        return LayerSize(
            d_model=512 if d_model is None else d_model,
            num_heads=8 if num_heads is None else num_heads,
            length=length,
            dtype=dtype,
        )
    if d_model is not None or num_heads is not None:
        raise ValueError("expected a model or sizes of a layer, got both")
    attention = model.layers[0].attention
    if not isinstance(attention, ProjectedAttention):
        # All bad input is a ValueError.
        raise ValueError(  # noqa: TRY004
            f"expected a model whose layers project to queries, keys and values, got {model.name}"
        )
    config = attention.config
    return LayerSize(
        d_model=config.d_model,
        num_heads=config.num_heads,
        length=length,
        dtype=dtype,
        head_dim=config.head_dim,
        bias=config.bias,
        out_bias=config.out_bias,
        model=model.name,
    )


def variants_report(labels: Sequence[Variant | str], size: LayerSize) -> Report:
    """Return the report of some variants or labels, or of the whole table if there are none."""
    if size.length < 1:
        raise ValueError(f"expected a length of at least 1 token, got {size.length}")
    variants = [as_variant(label) for label in labels] or [one.variant for one in VARIANTS]
    baseline = count_layer(QKV, size)
    pairs: list[tuple[Variant, LayerCosts | None]] = []
    refused: dict[Variant, str] = {}
    for variant in variants:
        try:
            pairs.append((variant, count_layer(variant, size)))
        except ValueError as error:
            if labels:
                raise
            pairs.append((variant, None))
            refused[variant] = str(error)
    symbols = [line for one in variants for line in define_symbols(one)] if labels else []
    hint = "--label LABEL defines the symbols of an equation."
    table = tabulate(
        "variants",
        "Variants",
        [_row(*pair, baseline, size) for pair in pairs],
        word("label"),
        word("tuple", "as tuple"),
        number("parameters", below="of QKV's"),
        number("macs_per_token", "MACs", below="per token"),
        number("cache_bytes_per_token", "cache", below="per token"),
        number("published", below="of networks"),
        word("meaning", below="equation"),
        notes=(*_notes(refused, variants, size), *dict.fromkeys(symbols or [hint])),
        main=True,
        brief=None if labels else _BRIEF,
    )
    return Report(
        subject="variants",
        question="Which projections can attention share, and what does each choice cost?",
        lead=_describe_layer(size),
        sections=(Section(key="variants", title="Variants", blocks=(table,), brief=True),),
        data={"layer": size, "variants": [_data(*pair, refused, size) for pair in pairs]},
    )


def count_layer(variant: Variant, size: LayerSize) -> LayerCosts:
    """Return the costs of one layer, a causal one where the variant has a causal form."""
    has_causal = CORES[variant.core].has_causal
    layer = AttentionConfig(
        d_model=size.d_model,
        num_heads=size.num_heads,
        head_dim=size.head_dim,
        variant=variant,
        causal=has_causal,
        bias=size.bias,
        out_bias=size.out_bias,
    )
    projections = attention_projection_macs_per_token(layer) * size.length
    macs = projections + score_macs(layer, size.length, "square")
    return LayerCosts(
        parameters=pick(attention_parameters(layer), "weights biases total"),
        macs_per_token=macs // size.length,
        macs_per_sequence=macs,
        cache_bytes_per_token=layer_cache_bytes_per_token(layer, size.dtype)
        if has_causal
        else None,
        state_bytes=layer_state_bytes(ProjectedAttention(config=layer), size.dtype),
    )


def _describe_layer(size: LayerSize) -> str:
    parts = [f"d_model {size.d_model}", f"{size.num_heads} heads"]
    parts += [f"head_dim {size.head_dim}"] * (size.head_dim is not None)
    parts += ["no biases"] * (not size.bias)
    parts += [f"{size.length:,} tokens", size.dtype]
    owner = f" of {size.model}" if size.model else ""
    return f"One causal layer{owner}: {', '.join(parts)}."


def _row(
    variant: Variant, costs: LayerCosts | None, base: LayerCosts, size: LayerSize
) -> dict[str, Cell]:
    meaning, published = describe(variant), plain(MISSING)
    if quality := _published_quality(variant, size):
        text = f"{quality.change} {quality.measure}"
        published = Cell(raw=text, text=text, below=(quality.networks,))
    found = {
        "label": named(format_label(variant)),
        "tuple": plain(format_tuple(variant)),
        "published": published,
        "meaning": Cell(raw=meaning, text=meaning, below=(write_equation(variant),)),
        "parameters": plain("does not fit", tone="warn"),
        "macs_per_token": plain(None),
        "cache_bytes_per_token": plain(name_cached(variant)),
    }
    if costs is None:
        return found
    return {
        **found,
        "parameters": _share(costs.parameters["total"], base.parameters["total"]),
        "macs_per_token": _share(costs.macs_per_token, base.macs_per_token),
        "cache_bytes_per_token": _cache(variant, costs, base.cache_bytes_per_token),
    }


def _cache(variant: Variant, costs: LayerCosts, of: int | None) -> Cell:
    cached = costs.cache_bytes_per_token
    if cached is None or of is None:
        return plain("no causal form")
    held = f" of {numbers.data_size(costs.state_bytes)}" if costs.state_bytes else ""
    return Cell(raw=cached, text=_share(cached, of).text, below=(name_cached(variant) + held,))


def _share(value: int, of: int) -> Cell:
    return plain(value, f"{whole(value)} ({100 * value / of:.3g} %)")


def _published_quality(variant: Variant, size: LayerSize) -> PublishedQuality | None:
    """Return a variant's published change, from networks with the same share of cache."""
    return published_quality(format_label(variant), num_heads=size.num_heads)


def _notes(
    refused: dict[Variant, str], variants: Sequence[Variant], size: LayerSize
) -> Iterator[str]:
    yield "Shares are of QKV; the output projection is left out."
    yield "In equations s is the score scale."
    found = [_published_quality(variant, size) for variant in variants]
    yield from sorted({f"published: {one.quantity} ({one.source})" for one in found if one})
    for variant, shown in zip(variants, found, strict=True):
        other = None if shown else published_quality(format_label(variant))
        if other is not None and other.num_heads is not None:
            kept = len(variant.sharing.cached) * variant.kv_heads(other.num_heads)
            yield (
                f"{other.variant}: {other.change} {other.measure} is published for "
                f"{other.networks}, which cache {100 * kept / (2 * other.num_heads):.3g} % of QKV"
            )
    for variant, reason in refused.items():
        yield f"{format_label(variant)} does not fit: {reason}"


def _data(
    variant: Variant, costs: LayerCosts | None, refused: dict[Variant, str], size: LayerSize
) -> dict[str, Any]:
    label = format_label(variant)
    entry = next((one for one in VARIANTS if one.label == label), None)
    return {
        "label": label,
        "tuple": format_tuple(variant),
        "meaning": describe(variant),
        "equation": write_equation(variant),
        "symbols": define_symbols(variant),
        "origin": entry.origin if entry else "not in the table",
        "remark": entry.remark if entry else "",
        **pick(costs, "parameters macs_per_token macs_per_sequence"),
        "cached": () if variant.keeps_state else variant.cached,
        **pick(costs, "cache_bytes_per_token state_bytes"),
        "refused": refused.get(variant),
        "published": _published_quality(variant, size),
    }
