"""The report of the table of variants: meaning, equation, costs of one layer, published quality."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.descriptions import describe, name_cached
from qkvary.arch.equations import define_symbols, write_equation
from qkvary.arch.labels import as_variant, format_label, format_tuple
from qkvary.arch.models import Model
from qkvary.arch.parts import check_word
from qkvary.arch.published_quality import BASELINE, LANGUAGE_MODELS, OTHER_NETWORKS
from qkvary.arch.table import VARIANTS
from qkvary.arch.terms import CORES
from qkvary.arch.variants import Variant
from qkvary.costs.cache import layer_cache_bytes_per_token, layer_state_bytes
from qkvary.costs.formats import Dtype
from qkvary.costs.macs import attention_projection_macs_per_token, score_macs
from qkvary.costs.parameters import attention_parameters
from qkvary.planning.quality import find_label
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import Brief, Cell, named, number, pick, plain, tabulate, word
from qkvary.text import numbers
from qkvary.text.numbers import MISSING, whole

_BRIEF = Brief(
    columns=("label", "tuple", "parameters", "cache_bytes_per_token"),
    rows=next(place for place, one in enumerate(VARIANTS) if "@" in one.label),
)
"""The part shown without ``--full``: labels without ``@`` (positions, windows or cores)."""


def choose_layer(
    model: Model | None, *, d_model: int | None, num_heads: int | None
) -> AttentionConfig:
    """Return a causal layer of the given sizes, or with the sizes of a model's first layer."""
    if model is None:
        return AttentionConfig(
            d_model=512 if d_model is None else d_model,
            num_heads=8 if num_heads is None else num_heads,
            causal=True,
        )
    if d_model is not None or num_heads is not None:
        raise ValueError("expected either a model or the sizes of a layer, got both")
    attention = model.layers[0].attention
    if not isinstance(attention, ProjectedAttention):
        # All bad input is a ValueError.
        raise ValueError(  # noqa: TRY004
            f"expected a model whose layers project to queries, keys and values, got {model.name}"
        )
    config = attention.config
    return AttentionConfig(
        d_model=config.d_model,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        bias=config.bias,
        out_bias=config.out_bias,
        causal=True,
    )


def variants_report(
    labels: Sequence[Variant | str],
    layer: AttentionConfig,
    *,
    length: int,
    dtype: Dtype,
    model: str | None = None,
) -> Report:
    """Return the report of some variants or labels, or of the whole table if there are none.

    Args:
        labels: The variants.
        layer: The layer whose costs are counted with every variant.
        length: Tokens of the sequence.
        dtype: Number format of the cache.
        model: The name of the model whose layers have these sizes, if a model was named.
    """
    check_word("dtype", dtype, get_args(Dtype))
    if length < 1:
        raise ValueError(f"expected a length of at least 1 token, got {length}")
    variants = [as_variant(label) for label in labels] or [one.variant for one in VARIANTS]
    baseline = _count(layer, length, dtype)
    described: list[dict[str, Any]] = []
    for variant in variants:
        costs, refused = dict.fromkeys(baseline), None
        try:
            causal = CORES[variant.core].has_causal
            costs = _count(replace(layer, variant=variant, causal=causal), length, dtype)
        except ValueError as error:
            if labels:
                raise
            refused = str(error)
        # From networks with the same share of cache.
        published = _find_published(variant, layer.num_heads)
        described.append(
            {**_describe(variant), **costs, "refused": refused, "published": published}
        )
    symbols = [line for one in variants for line in define_symbols(one)] if labels else []
    hint = "Add --label LABEL to see what the symbols in the equation of that label mean."
    table = tabulate(
        "variants",
        "Variants",
        [_row(variant, one, baseline) for variant, one in zip(variants, described, strict=True)],
        word("label"),
        word("tuple", "as tuple"),
        number("parameters", below="of QKV's"),
        number("macs_per_token", "MACs", below="per token"),
        number("cache_bytes_per_token", "cache", below="per token"),
        number("published", below="networks"),
        word("meaning", below="equation"),
        notes=(*_notes(described), *dict.fromkeys(symbols or [hint])),
        main=True,
        brief=None if labels else _BRIEF,
    )
    size = {
        **pick(layer, "d_model num_heads"),
        "length": length,
        "dtype": dtype,
        **pick(layer, "head_dim bias out_bias"),
        "model": model,
    }
    return Report(
        subject="variants",
        question="Which projections can attention share, and what does each choice cost?",
        lead=_describe_layer(layer, length, dtype, model),
        sections=(Section(key="variants", title="Variants", blocks=(table,), brief=True),),
        data={"layer": size, "variants": described},
    )


def _describe_layer(layer: AttentionConfig, length: int, dtype: Dtype, model: str | None) -> str:
    parts = [f"d_model {layer.d_model}", f"{layer.num_heads} heads"]
    parts += [f"head_dim {layer.head_dim}"] * (layer.head_dim is not None)
    parts += ["no biases"] * (not layer.bias)
    parts += [f"{length:,} tokens", dtype]
    owner = f" of {model}" if model else ""
    return f"One causal layer{owner}: {', '.join(parts)}."


def _row(variant: Variant, one: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Cell]:
    published = plain(MISSING)
    if quality := one["published"]:
        text = f"{quality['change']} {quality['measure']}"
        published = Cell(raw=text, text=text, below=(quality["networks"],))
    parameters, macs = plain("does not fit", tone="warn"), plain(None)
    cache = plain(name_cached(variant))
    if one["refused"] is None:
        parameters = _share(one["parameters"]["total"], baseline["parameters"]["total"])
        macs = _share(one["macs_per_token"], baseline["macs_per_token"])
        cached, state = one["cache_bytes_per_token"], one["state_bytes"]
        cache = plain("no causal form")
        if cached is not None:
            held = f" of {numbers.data_size(state)}" if state else ""
            share = _share(cached, baseline["cache_bytes_per_token"])
            cache = replace(share, below=(name_cached(variant) + held,))
    return {
        "label": named(one["label"]),
        "tuple": plain(one["tuple"]),
        "parameters": parameters,
        "macs_per_token": macs,
        "cache_bytes_per_token": cache,
        "published": published,
        "meaning": Cell(raw=one["meaning"], text=one["meaning"], below=(one["equation"],)),
    }


def _count(layer: AttentionConfig, length: int, dtype: Dtype) -> dict[str, Any]:
    """Return the costs of a layer. A layer that is not causal has no cache."""
    macs = attention_projection_macs_per_token(layer) * length + score_macs(layer, length, "square")
    return {
        "parameters": pick(attention_parameters(layer), "weights biases total"),
        "macs_per_token": macs // length,
        "macs_per_sequence": macs,
        "cache_bytes_per_token": (
            layer_cache_bytes_per_token(layer, dtype) if layer.causal else None
        ),
        "state_bytes": layer_state_bytes(ProjectedAttention(config=layer), dtype),
    }


def _share(value: int, of: int) -> Cell:
    return plain(value, f"{whole(value)} ({100 * value / of:.3g} %)")


def _notes(described: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "Percentages are relative to QKV and do not include the output projection."
    yield "In the equations, s is the score scale."
    found = [one["published"] for one in described]
    yield from sorted({f"published: {one['quantity']} ({one['source']})" for one in found if one})
    for one in described:
        if one["refused"] is not None:
            yield f"{one['label']} does not fit this layer: {one['refused']}"


def _find_published(variant: Variant, num_heads: int) -> dict[str, Any] | None:
    """Return the published change in quality of a variant, or None if none was published.

    If the paper prints a change, that change is quoted; otherwise the change is the result of the
    variant minus the result of the baseline. Networks with ``num_heads`` query heads are preferred.
    """
    for table in sorted(
        (*LANGUAGE_MODELS.values(), *OTHER_NETWORKS), key=lambda one: one.num_heads != num_heads
    ):
        label, heads = find_label(variant, num_heads, table), table.num_heads
        if label in (None, BASELINE):
            continue
        own, base = table.variants[label], table.variants[BASELINE]
        return {
            "variant": label,
            "change": f"{own.change} %" if own.change else f"{own.value - base.value:+.3f}",
            "measure": table.measure,
            "networks": table.networks if heads is None else f"{table.networks}, {heads} heads",
            "num_heads": heads,
            "quantity": table.quantity,
            "source": table.source,
            "note": "" if own.change else f"{own.printed} against {base.printed}",
        }
    return None


def _describe(variant: Variant) -> dict[str, Any]:
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
        "cached": () if variant.keeps_state else variant.cached,
    }
