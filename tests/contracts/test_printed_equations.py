"""The printed equation of every variant, evaluated in float64, is what the layer computes."""

import math
import re

import numpy as np
import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.equations import define_symbols, write_equation
from qkvary.arch.labels import parse_variant
from qkvary.arch.table import VARIANTS
from qkvary.nn.attention import Attention
from tests.contracts.variant_cases import (
    EVERY_LABEL,
    GATE,
    distance,
    make_config,
    random_input,
    randomize,
    variant_pairs,
)
from tests.reference.equations import evaluate

ROOT_MEAN_SQUARE = {
    "input": 1.0,
    "learned": math.sqrt(1 / 3),
    "residual": math.sqrt(1 + 1 / 3),
}
"""Of a role, where the layer input has 1 and weights are U(+-1/sqrt(d_model)) (torch's layers)."""


def _residual_gelu() -> float:
    """The root mean square of x + gelu(z), the two independent, z of deviation 1/sqrt(3)."""
    steps, weights = np.polynomial.hermite_e.hermegauss(120)
    z = steps * ROOT_MEAN_SQUARE["learned"]
    gelu = z * 0.5 * (1.0 + np.vectorize(math.erf)(z / math.sqrt(2.0)))
    return math.sqrt(1.0 + float((gelu**2 * weights).sum()) / math.sqrt(2 * math.pi))


def score_scale(label: str, size: int) -> float:
    """S as the guide defines it: 1/sqrt(channels), and identity roles are made as large as others.

    The scores of a layer that compares the layer input have the deviation of QKV's.
    """
    variant = parse_variant(label)
    kinds = ["input" if role == "x" else "learned" for role in list(variant.sharing.roles.values())]
    sizes = [ROOT_MEAN_SQUARE[kind] for kind in kinds[:2]]
    if variant.query_form == "residual":
        sizes[0] = ROOT_MEAN_SQUARE["residual"]
    if variant.query_form == "residual-gelu":
        sizes[0] = _residual_gelu()
    has_input = "input" in kinds[:2] or "residual" in variant.query_form
    factor = ROOT_MEAN_SQUARE["learned"] ** 2 / math.prod(sizes) if has_input else 1.0
    return factor / math.sqrt(size + (variant.decoupled or 0))


def compare(config: AttentionConfig, label: str, equation: str) -> float:
    """The largest difference between a layer and an equation."""
    layer = Attention(config).double()
    randomize(layer, seed=43)
    x = random_input(47, batch=1)
    scale = score_scale(label, config.d_model // config.num_heads)
    with torch.no_grad():
        mixed = evaluate(equation, config, layer.state_dict(), x[0], scale)
        expected = layer.o_proj(mixed.transpose(0, 1).flatten(1))
        return distance(layer(x)[0], expected)


@variant_pairs("label, causal", EVERY_LABEL, (True, False))
def test_the_layer_computes_what_is_printed(label: str, causal: bool) -> None:
    config = make_config(label, causal=causal)
    assert compare(config, label, write_equation(config.variant)) < GATE


def test_every_symbol_is_defined() -> None:
    known = {"softmax", "channel", "exp", "elu", "relu", "gelu", "or", "divides", "i", "j"}
    for entry in VARIANTS:
        lines = define_symbols(entry.variant)
        defined = [text for line in lines for text in re.split(" and |; ", line)]
        symbols = re.findall(r"diag-\w+|R⁻¹|Σⱼ|[A-Za-zτλ]+ₕ?", write_equation(entry.variant))
        for symbol in {re.sub("^(W|[AB](?=[kv])).*", r"\1", one) for one in symbols}:
            is_known = symbol in known or symbol.isdigit() or symbol in "WAB"
            is_defined = any(re.match(rf"{symbol}\b|{symbol} ", text) for text in defined)
            assert is_known or is_defined, (entry.label, symbol)
