"""Recomputes Tables 4 to 11 of "Do Transformers Need Three Projections?"."""

import dataclasses
import math
from collections.abc import Mapping

from qkvary.arch.labels import parse_variant
from qkvary.arch.sharing import Source
from qkvary.costs.macs import MacCount
from qkvary.costs.parameters import ParameterCount
from qkvary.papers import quantities as costs
from qkvary.papers.derivation import (
    Alternative,
    Derivation,
    Derive,
    Registry,
    by_column,
    printed_value,
    variant_of,
)
from qkvary.papers.tables import load_published
from qkvary.planning import quality
from qkvary.studies.published_tables import PublishedFigure
from qkvary.text.printed import printed_interval

SMALL = "three-projections-table-4"
LARGE = "three-projections-table-10"

SQUARE = "every pair of tokens counted, even if masked; biases and softmax not counted"
_NETWORKS = {"three": "QKV", "two": "Q-K=V", "one": "Q=K=V"}
"""The variant of each column of Tables 5, 6 and 8. Column ``two`` is also that of Q=K-V, which
costs the same as Q-K=V."""
_NAMES: Mapping[Source, str] = {"q": "Q", "k": "K", "v": "V", "x": "X"}
_BILLION = 10**9
_MILLION = 10**6


def perplexity(split: str) -> Derive:
    """Return a function that derives the perplexity from the printed loss."""

    def derive(figure: PublishedFigure) -> Derivation:
        loss = load_published(SMALL).figure(figure.row, f"{split}_loss")
        low, high = printed_interval(loss)
        return Derivation(
            value=math.exp(loss.value or 0.0),
            formula=f"exp of the printed loss, {loss.printed}",
            spread=(math.exp(low), math.exp(high)),
        )

    return derive


def derive_change(
    variant: str, table: str = SMALL, column: str = "validation_perplexity"
) -> Derivation:
    """Derive the change of a printed perplexity relative to that of QKV, in percent."""
    own = load_published(table).figure(variant, column)
    base = load_published(table).figure("QKV", column)
    (low, high), (base_low, base_high) = printed_interval(own), printed_interval(base)
    value = quality.change(base.value or math.nan, own.value or math.nan)
    spread = (quality.change(base_high, low), quality.change(base_low, high))
    return Derivation(
        value=value,
        formula=f"{own.printed} / {base.printed} - 1",
        spread=(0.0, 0.0) if own is base else spread,
    )


def change(figure: PublishedFigure) -> Derivation:
    """Derive the change in perplexity relative to QKV at 300M, in percent."""
    return derive_change(variant_of(figure))


def change_large(figure: PublishedFigure) -> Derivation:
    """Derive the change in perplexity relative to QKV at 1.2B, in percent."""
    return derive_change(variant_of(figure), LARGE, "perplexity")


def cache_reduction(figure: PublishedFigure) -> Derivation:
    """Derive the reduction of the cache at 300M, in percent."""
    return derive_reduction(variant_of(figure))


def derive_reduction(variant: str, size: quality.Size = "300M") -> Derivation:
    """Derive the reduction of a cache relative to QKV's, in percent."""
    own, whole = (quality.cache_bytes(label, size) for label in (variant, "QKV"))
    return Derivation(
        value=costs.cache_reduction(variant, size),
        formula=f"1 - {own:,} / {whole:,} bytes",
        convention="bytes of one token",
    )


def cached(figure: PublishedFigure) -> Derivation:
    """Derive which tensors a decoder has to cache."""
    kept = [_NAMES[source] for source in parse_variant(variant_of(figure)).cached]
    return Derivation(value="+".join(kept), formula="the projections that key and value use")


def projections(figure: PublishedFigure) -> Derivation:
    """Derive which roles (query, key, value) use each projection, in the words of Table 11."""
    variant = parse_variant(variant_of(figure))
    groups = [
        "=".join(role[0].upper() for role in variant.sharing.readers(source))
        for source in variant.projections
    ]
    words = ", ".join(groups) + (", +PE" if variant.plus else "")
    if variant.num_kv_heads is not None:
        heads = variant.num_kv_heads
        words += " (1 head)" if heads == 1 else f" ({heads} groups)"
    return Derivation(value=words, formula="the roles that use each projection")


def _parts(count: ParameterCount) -> dict[str, int]:
    return {
        "Total": count.total,
        "Embedding": count.embedding + count.positions,
        "Attention": count.attention,
        "MLP": count.feed_forward,
        "LayerNorm": count.norms,
    }


def _work(count: MacCount) -> dict[str, int]:
    return {
        "Total": count.total,
        "Attention": count.attention,
        "MLP": count.feed_forward,
        "LM head": count.head,
    }


_PARAMETER_FORMULAS = {
    "Total": "sum of the parts",
    "Embedding": "(50,304 tokens + 2,048 positions) x d; the head is the embedding",
    "Attention": "layers x (projections + 1) x (d^2 + d)",
    "MLP": "layers x (2 d d_ff + d_ff + d)",
    "LayerNorm": "(2 layers + 1) x 2 d",
}
_MAC_FORMULAS = {
    "Total": "sum of the parts",
    "Attention": "layers x ((projections + 1) n d^2 + 2 n^2 d)",
    "MLP": "layers x 2 n d d_ff",
    "LM head": "n d x 50,304 tokens",
}


def _parameters(figure: PublishedFigure) -> Derivation:
    return Derivation(
        value=_parts(costs.parameters(_NETWORKS[figure.column]))[figure.row] / _MILLION,
        formula=_PARAMETER_FORMULAS[figure.row],
        convention="biases everywhere, 20 layers, d 1024, d_ff 4096",
    )


def _parameter_change(figure: PublishedFigure) -> Derivation:
    label = _NETWORKS[figure.column.removeprefix("change_")]
    before, after = (_parts(costs.parameters(one))[figure.row] for one in ("QKV", label))
    return Derivation(
        value=quality.change(before, after),
        formula=f"{after:,} / {before:,} - 1",
        convention="biases everywhere",
    )


def _macs(figure: PublishedFigure) -> Derivation:
    label = _NETWORKS[figure.column]
    visible = _work(costs.macs(label, 2048, "visible"))[figure.row] / _BILLION
    square = _work(costs.macs(label, 2048))[figure.row] / _BILLION
    note = "" if visible == square else f"Visible pairs only: {visible:.2f} G."
    return Derivation(
        value=square,
        formula=_MAC_FORMULAS[figure.row],
        convention=f"n = 2,048; {SQUARE}",
        note=note,
    )


def _mac_change(figure: PublishedFigure) -> Derivation:
    label = _NETWORKS[figure.column.removeprefix("change_")]
    before, after = (_work(costs.macs(one, 2048))[figure.row] for one in ("QKV", label))
    return Derivation(
        value=quality.change(before, after),
        formula=f"{after / _BILLION:.2f} / {before / _BILLION:.2f} - 1",
        convention=SQUARE,
    )


def attention_share(label: str, tokens: int) -> float:
    """Return the share of attention in the MACs of the 300M network, in percent."""
    count = costs.macs(label, tokens)
    return 100 * count.attention / count.total


def _share(figure: PublishedFigure) -> Derivation:
    tokens = int(figure.row.split()[0])
    label = _NETWORKS[figure.column]
    count = costs.macs(label, tokens, "visible")
    twin = {("three", 512): ("two", 1024), ("two", 1024): ("three", 512)}.get(
        (figure.column, tokens)
    )
    notes = [f"Visible pairs only: {100 * count.attention / count.total:.1f} %."]
    if twin:
        notes.append(
            f"The recomputed number equals that of {_NETWORKS[twin[0]]} at {twin[1]:,} tokens, "
            "but the paper prints 32.4 in one place and 32.3 in the other."
        )
    return Derivation(
        value=attention_share(label, tokens),
        formula="attention / (attention + MLP + LM head), in MACs",
        convention=SQUARE,
        note=" ".join(notes),
    )


def _saving(figure: PublishedFigure) -> Derivation:
    tokens = int(figure.row.split()[0])
    label = _NETWORKS[figure.column.removeprefix("saving_")]
    before, after = (costs.macs(one, tokens).total for one in ("QKV", label))
    return Derivation(
        value=quality.change(before, after),
        formula="(all MACs of the variant) / (all MACs of QKV) - 1",
        convention=SQUARE,
    )


def derive_token_kb(label: str) -> Derivation:
    """Derive the cache of one token at 300M, in units of 1,024 bytes."""
    return Derivation(
        value=quality.cache_bytes(label) / costs.KIB,
        formula=costs.CACHE_FORMULA,
        convention="KB of 1,024 bytes",
    )


def derive_cache_gb(label: str, size: quality.Size, tokens: int, users: int = 1) -> Derivation:
    """Derive the size in GB of a cache of 32k or 128k tokens.

    The derivation has two values: in the main value "k" means 1,024, and in the alternative value
    "k" means 1,000.
    """
    decimal = {
        costs.TOKENS_32K: costs.ROUND_32K,
        costs.TOKENS_128K: costs.ROUND_128K,
    }[tokens]
    formula = costs.CACHE_FORMULA + f" x {tokens:,} tokens" + (f" x {users} users" * (users > 1))
    words = costs.ROUND_TOKENS.replace(f"{costs.ROUND_32K:,}", f"{decimal:,}")
    return Derivation(
        value=users * quality.cache_bytes(label, size, tokens=tokens) / costs.GB,
        formula=formula,
        convention="GB of 10^9 bytes",
        others=(
            Alternative(
                value=users * quality.cache_bytes(label, size, tokens=decimal) / costs.GB,
                convention=words.replace(f"{costs.TOKENS_32K:,}", f"{tokens:,}"),
            ),
        ),
    )


def _difference(figure: PublishedFigure) -> Derivation:
    own = load_published(LARGE).figure(figure.row, "perplexity")
    base = load_published(LARGE).figure("QKV", "perplexity")
    return Derivation(
        value=(own.value or math.nan) - (base.value or math.nan),
        formula=f"{own.printed} - {base.printed}",
    )


def _large_parameters(figure: PublishedFigure) -> Derivation:
    return Derivation(
        value=costs.parameters(variant_of(figure), "1.2B").total / _MILLION,
        formula="all parameters of 22 layers, d 2048, d_ff 8192, 32 heads; tied head",
        convention="biases everywhere",
    )


def _large_attention(figure: PublishedFigure) -> Derivation:
    label = variant_of(figure)
    own, shared = (costs.parameters(one, "1.2B").attention / _MILLION for one in (label, "Q-K=V"))
    # Half-way between the four matrices per layer and the three of the next row.
    half = Alternative(value=(own + shared) / 2, convention="counting 3.5 matrices per layer")
    slips = (half,) if label == "QKV" else ()
    return Derivation(
        value=own,
        formula="layers x (d + 1) x (query + output width + key and value width of the KV heads)",
        convention="biases everywhere, output projection included",
        slips=slips,
        note="The total in the same row is right only if all four matrices are counted."
        if slips
        else "",
    )


def _large_cache(figure: PublishedFigure) -> Derivation:
    size = quality.cache_bytes(variant_of(figure), "1.2B", tokens=costs.TOKENS_32K)
    return Derivation(
        value=size / costs.MB,
        formula=f"{costs.CACHE_FORMULA} x 32,768 tokens",
        convention="MB of 10^6 bytes",
        others=(Alternative(value=size / costs.MIB, convention="MiB of 2^20 bytes"),),
        note="Two rows of the column are in 10^6 bytes and four in MiB.",
    )


def derive_large_reduction(label: str) -> Derivation:
    """Derive a cache reduction at 1.2B, and the wrong value that mixing MB and MiB gives."""
    printed = load_published(LARGE).figure(label, "cache").printed
    mixed = printed_value(LARGE, label, "cache") / printed_value(LARGE, "QKV", "cache")
    slip = Alternative(
        value=100 * (1 - mixed), convention=f"1 - {printed} MiB / 5,900 MB of Table 10"
    )
    return dataclasses.replace(derive_reduction(label, "1.2B"), slips=(slip,))


_PARTS = dict.fromkeys(_NETWORKS, _parameters)
_PRODUCTS = dict.fromkeys(_NETWORKS, _macs)
SUMMARY: Mapping[str, Derive] = {"cache_reduction": cache_reduction, "change": change}
"""The derivations of columns that appear in several tables, in the paper and on the poster."""

TABLES: Registry = {
    SMALL: by_column(
        {
            "train_perplexity": perplexity("train"),
            "validation_perplexity": perplexity("validation"),
            **SUMMARY,
        }
    ),
    "three-projections-table-5": by_column(
        {**_PARTS, "change_two": _parameter_change, "change_one": _parameter_change}
    ),
    "three-projections-table-6": by_column(
        {**_PRODUCTS, "change_two": _mac_change, "change_one": _mac_change}
    ),
    "three-projections-table-7": by_column(
        {
            "cached": cached,
            "per_token": lambda figure: derive_token_kb(variant_of(figure)),
            "at_32k": lambda figure: derive_cache_gb(variant_of(figure), "300M", costs.TOKENS_32K),
            "reduction": cache_reduction,
        }
    ),
    "three-projections-table-8": by_column(
        {
            **dict.fromkeys(_NETWORKS, _share),
            "saving_two": _saving,
            "saving_one": _saving,
        }
    ),
    "three-projections-table-9": by_column(SUMMARY),
    LARGE: by_column(
        {
            "difference": _difference,
            "change": change_large,
            "parameters": _large_parameters,
            "attention": _large_attention,
            "cache": _large_cache,
        }
    ),
    "three-projections-table-11": by_column(
        {**SUMMARY, "cached": cached, "projections": projections}
    ),
}
