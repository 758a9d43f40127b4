"""Recomputes the savings in the overview article.

The article names neither a network nor a source, so each derivation states its own sizes.
"""

from collections.abc import Callable

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.families.sizes import published_configs
from qkvary.arch.labels import parse_variant
from qkvary.costs.cache import layer_cache_bytes_per_token
from qkvary.costs.parameters import attention_parameters, projection_parameters
from qkvary.papers import quantities as costs
from qkvary.papers.derivation import Alternative, Derivation, Registry, by_column, variant_of
from qkvary.studies.published_tables import PublishedFigure

_HEADS = 16
_HEADS_OF_8X = 8


def _layer(label: str, heads: int = _HEADS) -> AttentionConfig:
    return AttentionConfig(
        d_model=64 * heads,
        num_heads=heads,
        causal=True,
        bias=False,
        out_bias=False,
        variant=parse_variant(label),
    )


def _saved(label: str, count: Callable[[str], int]) -> float:
    """Return the reduction of ``count`` for a variant relative to QKV, in percent."""
    return 100 * (1 - count(label) / count("QKV"))


def _count_attention(label: str) -> int:
    return attention_parameters(_layer(label)).total


def _count_projections(label: str) -> int:
    layer = _layer(label)
    return sum(projection_parameters(layer, one).weights for one in layer.variant.projections)


def _count_all(label: str) -> int:
    return costs.parameters(label).total


def _parameters(figure: PublishedFigure) -> Derivation:
    label = variant_of(figure)
    whole = "the whole 300M network of the first paper"
    # Q-I-V was not published at 300M; Q=K-V has as many matrices.
    twin = "Q=K-V" if label == "Q-I-V" else label
    alternatives = [
        Alternative(value=_saved(label, _count_projections), convention="input projections only"),
        Alternative(value=_saved(twin, _count_all), convention=whole),
    ]
    if label == "GQA-4":
        half = _saved("GQA-8", _count_all)
        alternatives.append(Alternative(value=half, convention=f"{whole} and 8 of 16 KV heads"))
    note = ""
    if label in ("MQA", "GQA-4"):
        note = (
            "For the whole 300M network, the two rows with 33 % would have 6.9 %. The column "
            "therefore mixes conventions."
        )
    return Derivation(
        value=_saved(label, _count_attention),
        formula="1 - weights of the layer / 4 d^2; a projection has d^2 / 16 weights per head",
        convention="attention layer of 16 heads, output projection included, no biases",
        others=() if label == "QKV" else tuple(alternatives),
        note=note,
    )


def _cache(figure: PublishedFigure) -> Derivation:
    label = variant_of(figure)
    if label == "GQA-4":
        return Derivation(
            value=_largest_group(),
            formula="query heads / KV heads",
            convention=(
                "the largest number of query heads per KV head in the published networks that "
                "this package knows, Llama 3.1 405B"
            ),
            others=(
                Alternative(
                    value=_cache_ratio(label, _HEADS),
                    convention="four query heads per KV head, as in Llama 3 8B and Mistral 7B",
                ),
            ),
        )
    return Derivation(
        value=_cache_ratio(label, _HEADS),
        formula="KV heads of QKV / KV heads",
        convention="16 heads",
        others=(Alternative(value=_cache_ratio(label, _HEADS_OF_8X), convention="8 heads"),)
        if label == "MQA"
        else (),
        note=(
            "MQA divides the size of the cache by the number of heads. The article does not give "
            "that number."
        )
        if label == "MQA"
        else "If only the layer input is cached, the cache is half as large: A (X Wv) = (A X) Wv."
        if label == "Q-I-V"
        else "",
    )


def _largest_group() -> float:
    """Return the largest number of query heads per KV head in published networks with GQA."""
    configs = [one.config for one in published_configs().values()]
    heads = [(one.get("num_attention_heads"), one.get("num_key_value_heads")) for one in configs]
    return max(
        query / kept
        for query, kept in heads
        if isinstance(query, int) and isinstance(kept, int) and kept > 1
    )


def _cache_ratio(label: str, heads: int) -> float:
    before, after = (
        layer_cache_bytes_per_token(_layer(one, heads), "bfloat16") for one in ("QKV", label)
    )
    return before / after


TABLES: Registry = {
    "overview-article-savings": by_column({"parameters": _parameters, "cache": _cache})
}
