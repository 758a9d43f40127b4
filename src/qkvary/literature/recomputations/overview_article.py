"""The savings column of the overview article, which names neither a network nor a source."""

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.costs.cache import layer_cache_bytes_per_token
from qkvary.costs.parameters import attention_parameters, projection_parameters
from qkvary.literature.figures import PublishedFigure
from qkvary.literature.recomputations import quantities as costs
from qkvary.literature.recomputations.derivation import (
    Alternative,
    Derivation,
    Registry,
    by_column,
    variant_of,
)

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


def _attention_saved(label: str) -> float:
    before, after = (attention_parameters(_layer(one)).total for one in ("QKV", label))
    return 100 * (1 - after / before)


def _projections_saved(label: str) -> float:
    sizes: list[int] = []
    for one in ("QKV", label):
        layer = _layer(one)
        sources = layer.variant.projections
        sizes.append(sum(projection_parameters(layer, source).weights for source in sources))
    return 100 * (1 - sizes[1] / sizes[0])


def _model_saved(label: str) -> float:
    before, after = (costs.parameters(one).total for one in ("QKV", label))
    return 100 * (1 - after / before)


def _parameters(figure: PublishedFigure) -> Derivation:
    label = variant_of(figure)
    alternatives = [
        Alternative(value=_projections_saved(label), convention="input projections only"),
        Alternative(
            value=_model_saved(label), convention="the whole 300M network of the first paper"
        ),
    ]
    if label == "Q-I-V":
        # Not published at 300M; Q=K-V has the same number of matrices.
        alternatives[1] = Alternative(
            value=_model_saved("Q=K-V"), convention=alternatives[1].convention
        )
    if label == "GQA-4":
        half = Alternative(
            value=_model_saved("GQA-8"),
            convention=f"{alternatives[1].convention}, 8 of 16 KV heads",
        )
        alternatives.append(half)
    note = ""
    if label in ("MQA", "GQA-4"):
        note = (
            "Under that convention the two rows with 33 % would have 6.9 %: the column mixes "
            "conventions."
        )
    return Derivation(
        value=_attention_saved(label),
        formula="1 - matrices of the layer / 4 d^2, each KV head being 1/16 of a matrix",
        convention="attention layer of 16 heads, output projection included, no biases",
        others=() if label == "QKV" else tuple(alternatives),
        note=note,
    )


def _cache(figure: PublishedFigure) -> Derivation:
    label = variant_of(figure)
    return Derivation(
        value=_cache_ratio(label, _HEADS),
        formula="KV heads of QKV / KV heads",
        convention="16 heads",
        others=(Alternative(value=_cache_ratio(label, _HEADS_OF_8X), convention="8 heads"),)
        if label == "MQA"
        else (),
        note="The ratio of MQA is the number of heads, which the article does not give."
        if label == "MQA"
        else "The layer input may be kept alone, which halves the cache: A (X Wv) = (A X) Wv."
        if label == "Q-I-V"
        else "",
    )


def _cache_ratio(label: str, heads: int) -> float:
    before, after = (
        layer_cache_bytes_per_token(_layer(one, heads), "bfloat16") for one in ("QKV", label)
    )
    return before / after


TABLES: Registry = {
    "overview-article-savings": by_column({"parameters": _parameters, "cache": _cache})
}
