"""Recomputes the statements of "Key-Value Transformer" about costs."""

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.sharing import Source
from qkvary.costs.macs import projection_macs_per_token
from qkvary.costs.parameters import projection_parameters
from qkvary.papers.derivation import Alternative, Derivation, Registry, by_row


def _derive_share(*, macs: bool, value: bool = True) -> float:
    """Return the cost of KV's projections in percent of QKV's cost.

    The cost is counted in MACs if ``macs`` is true, else in weights. The value's projection is
    counted only if ``value`` is true.
    """
    sizes: list[int] = []
    for label in ("Q=K-V", "QKV"):
        layer = AttentionConfig(d_model=64, num_heads=4, variant=parse_variant(label))
        counted: list[Source] = [one for one in layer.variant.projections if value or one != "v"]
        weights = (projection_parameters(layer, one).weights for one in counted)
        products = (projection_macs_per_token(layer, one) for one in counted)
        sizes.append(sum(products if macs else weights))
    return 100 * sizes[0] / sizes[1]


def _derive_half(*, macs: bool) -> Derivation:
    return Derivation(
        value=_derive_share(macs=macs),
        formula="2 projections / 3 projections",
        convention="input projections only, weights without biases",
        others=(
            Alternative(
                value=_derive_share(macs=macs, value=False),
                convention="only the projections of query and key counted",
            ),
        ),
        note="If the output projection is counted, KV has three quarters of QKV's cost.",
    )


TABLES: Registry = {
    "key-value-text": by_row(
        {
            "parameters of KV attention, in % of QKV's": lambda: _derive_half(macs=False),
            "FLOPs of KV attention, in % of QKV's": lambda: _derive_half(macs=True),
            "tasks": lambda: Derivation(
                value=5 + 5 + 3, formula="5 synthetic + 5 vision + 3 language"
            ),
        }
    )
}
