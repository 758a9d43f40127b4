"""The report of an analysis: how alike keys and values are, and what tying them would cost."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from qkvary.analysis.findings import find_answers, find_caveats, is_uncertain
from qkvary.analysis.results import LayerAnalysis, NetworkAnalysis
from qkvary.reports import svg
from qkvary.reports.analysis_tables import (
    attention_table,
    cosine_table,
    key_value_table,
    rank_table,
)
from qkvary.reports.attention_maps import MOST_LAYERS, draw_maps
from qkvary.reports.learning_curves import thinned
from qkvary.reports.report import Chart, Group, Pairs, Report, Section
from qkvary.reports.tables import Table
from qkvary.reports.variant_styles import FAMILIES, mark
from qkvary.text import numbers
from qkvary.text.names import clip, count
from qkvary.text.numbers import fixed, whole

_WIDTH, _TOP = 440.0, 34.0
_LEAST = 1e-6
"""The smallest forecast that is drawn, in nats."""
_FAMILY = FAMILIES[1]
DEFINITIONS = {
    "the basis of a head": (
        "If query and key change their basis together, q k^T stays the same. If value and output "
        "change their basis together, v W_O stays the same. A measure that depends on the basis "
        "therefore says nothing about the function that a network computes."
    ),
    "explained": (
        "1 - |(V - K M) W_O|^2 / |V W_O|^2 over the tokens. K and V are the centred keys and "
        "values, and M is the best linear map from keys to values."
    ),
    "row spaces, tokens": (
        "The mean squared cosine of the principal angles between two spaces. “Row spaces” "
        "compares the input directions that W_K and W_V use. “Tokens” compares the keys and the "
        "values over the tokens."
    ),
    "CKA": (
        "The linear CKA of K M_q^1/2 and V M_o^1/2, with M_q and M_o as in “lost”. M_q weights the "
        "keys by the queries of their group, and M_o weights the values by the output projection."
    ),
    "lost": (
        "The smallest share of energy that is lost if keys and values are stored as a single "
        "tensor of head_dim channels. The energy is that of the matrix "
        "C^1/2 [W_K M_q^1/2, W_V M_o^1/2], and each half of the matrix is divided by its norm. C "
        "is the covariance of the layer input, M_q the second moment of the queries, and "
        "M_o = W_O W_O^T."
    ),
    "forecast": (
        "The rise of the loss on this text, in nats per token, if each head uses one tensor of "
        "head_dim channels as both key and value. W_Q and W_O are adapted; nothing is trained. "
        "Each half of the windows is scored with a tensor that was chosen on the other half."
    ),
    "random": (
        "The same measure for random weights instead of the network's, on the same tokens. In the "
        "column “row spaces”, it is head_dim / d_model. In the other columns, it is the mean over "
        "8 pairs of random weights, sampled with the seed."
    ),
}


def analysis_report(analysis: NetworkAnalysis, checkpoint: str) -> Report:
    """Return the report of an analysis.

    Args:
        analysis: The results.
        checkpoint: The name or path of the checkpoint.
    """
    answers, caveats = find_answers(analysis), find_caveats(analysis)
    layers = analysis.layers
    key_values, attention = key_value_table(layers), attention_table(layers)
    cosines, ranks = cosine_table(layers), rank_table(layers)
    return Report(
        subject=f"analysis: {checkpoint}",
        question=f"How alike are keys and values in {clip(checkpoint, 80)}, and what would tying "
        "them cost?",
        answer=answers,
        picture=Chart(
            draw=partial(_draw_layers, layers),
            caption="How alike key and value are, and the cost of tying them, by layer",
            detail="In the left panel, the vertical lines show the values for random weights. In "
            "the right panel, a hollow point marks a forecast that is not trusted.",
            file="layers",
        ),
        caveats=caveats,
        facts=tuple(_facts(analysis)),
        sections=(
            Section(
                key="keys-and-values",
                title="Keys and values",
                lead="These measures do not depend on the basis of a head. Below each value is the "
                "value for random weights.",
                blocks=(key_values,),
                brief=True,
            ),
            _weights(cosines, ranks),
            _attention(analysis, attention),
            Section(
                key="definitions", title="Definitions", blocks=(Pairs(tuple(DEFINITIONS.items())),)
            ),
        ),
        datasets=(key_values, cosines, ranks, attention),
        data=_data(analysis, checkpoint, answers, caveats),
        stem="analysis",
    )


def _facts(analysis: NetworkAnalysis) -> tuple[tuple[str, str], ...]:
    labels = dict.fromkeys(layer.label for layer in analysis.layers)
    return (
        ("variant", ", ".join(labels)),
        ("layers", whole(len(analysis.layers))),
        ("channels", whole(analysis.d_model)),
        ("tokens read", whole(analysis.tokens)),
        ("maximum window length", count(analysis.context, "token")),
        ("loss of the text", f"{fixed(analysis.loss)} nats per token"),
        ("seed", str(analysis.seed)),
    )


def _weights(*tables: Table) -> Section:
    return Section(
        key="weights",
        title="Weights",
        lead="These values depend on the arbitrary basis of a head: training from a "
        "different initialization can give other values for the same function. Only the values of "
        "W_Q W_K^T do not depend on the basis.",
        blocks=tables,
    )


def _draw_layers(layers: Sequence[LayerAnalysis]) -> svg.Drawing:
    """Draw two columns, a row for each layer: the explained share, and the forecast."""
    row = max(13.0, min(26.0, 360.0 / len(layers)))
    bottom = _TOP + len(layers) * row
    alike = svg.Scale(low=0.0, high=1.0, start=58.0, end=226.0)
    forecasts = [max(layer.forecast, _LEAST) for layer in layers]
    low, high = svg.padded(forecasts, 0.08, True)
    cost = svg.Scale(low=low, high=high, start=272.0, end=_WIDTH - 16, logarithmic=True)
    parts = [
        svg.text(58, 14, "value explained by the key", "panel-title"),
        svg.text(272, 14, "forecast, nats per token", "panel-title"),
        svg.x_axis(alike, bottom, partial(numbers.percent, decimals=0), 4, top=_TOP),
        svg.x_axis(cost, bottom, partial(numbers.real, digits=1), 3, top=_TOP),
    ]
    for index, layer in enumerate(layers):
        y = _TOP + (index + 0.5) * row
        if len(layers) <= 28 or index % 4 == 0:
            parts.append(svg.text(50, y + 4, f"layer {layer.number}", "tick end"))
        x, chance = alike(layer.explained), alike(layer.explained_chance)
        parts.append(svg.line((chance, y), (x, y), f"bar f-{_FAMILY.key}"))
        parts.append(svg.line((chance, y - row / 3), (chance, y + row / 3), "reference"))
        parts.append(mark(_FAMILY, x, y, 4.2))
        hollow = is_uncertain(layer)
        parts.append(mark(_FAMILY, cost(max(layer.forecast, _LEAST)), y, 4.2, hollow=hollow))
    description = "; ".join(
        f"layer {layer.number}: {numbers.percent(layer.explained, 0)} (random "
        f"{numbers.percent(layer.explained_chance, 0)}), {numbers.real(layer.forecast, 2)} nats"
        for layer in layers
    )
    return svg.Drawing(
        width=_WIDTH,
        height=bottom + 26,
        title="How alike key and value are, and what tying them would cost, by layer",
        description=clip(f"{description}.", 1200),
        parts=tuple(parts),
    )


def _attention(analysis: NetworkAnalysis, table: Table) -> Section:
    shown = thinned(len(analysis.layers), MOST_LAYERS)
    tokens = analysis.maps.shape[-1]
    maps = Chart(
        draw=partial(
            draw_maps,
            analysis.maps,
            shown,
            title="Attention maps",
            description=f"The first {tokens} tokens of the text. Rows are queries.",
        ),
        caption=f"The first {tokens} tokens of the text; rows are queries",
        file="maps",
    )
    return Section(
        key="attention",
        title="Attention",
        blocks=(
            table,
            Group(blocks=(maps,), layout="wide"),
        ),
        brief=True,
    )


def _data(
    analysis: NetworkAnalysis,
    checkpoint: str,
    answers: tuple[str, ...],
    caveats: tuple[str, ...],
) -> dict[str, Any]:
    figures = asdict(analysis)
    del figures["maps"]
    layers = [
        {**fields, "forecast_nats_per_token": layer.forecast, "explained": layer.explained}
        for fields, layer in zip(figures.pop("layers"), analysis.layers, strict=True)
    ]
    return {
        "checkpoint": checkpoint,
        "answers": answers,
        "caveats": caveats,
        "definitions": DEFINITIONS,
        **figures,
        "layers": layers,
    }
