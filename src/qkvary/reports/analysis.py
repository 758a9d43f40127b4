"""The report of an analysis: how alike keys and values are, and what tying them would cost."""

from dataclasses import asdict
from functools import partial
from typing import Any

from qkvary.analysis.findings import find_answers, find_caveats
from qkvary.analysis.results import LayerAnalysis, NetworkAnalysis
from qkvary.reports.analysis_charts import MOST_PANELS, layers_chart, spectrum_chart
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
from qkvary.text.names import clip, count
from qkvary.text.numbers import fixed, whole

DEFINITIONS = {
    "the basis of a head": (
        "q k^T and v W_O stay the same if query and key change their basis together (W_Q to W_Q "
        "A^-T, W_K to W_K A), and likewise value and output (W_V to W_V B, W_O to B^-1 W_O). So a "
        "measure that depends on the basis says nothing about what a network computes."
    ),
    "explained": (
        "1 - |(V - K M) W_O|^2 / |V W_O|^2 over the tokens, with keys K and values V centred, and "
        "M the best linear map of keys to values. W_O can absorb M."
    ),
    "row spaces, tokens": (
        "Mean squared cosine of the principal angles between two spaces. Row spaces: the two "
        "spaces are the input directions that W_K and W_V use; for random weights the value is "
        "head_dim / d_model, by derivation rather than by sampling. Tokens: the two spaces are the "
        "keys X W_K and the values X W_V over the tokens (canonical correlations)."
    ),
    "CKA": (
        "Linear CKA of K M_q^1/2 and V M_o^1/2: keys as the queries of their group see them, "
        "values as the output sees them. CKA of K and V themselves, which depends on the "
        "basis, is in the JSON as plain_similarity."
    ),
    "lost": (
        "The energy of the joint spectrum beyond its first head_dim singular values, which no "
        "single tensor of head_dim channels can keep. The spectrum is that of C^1/2 [W_K M_q^1/2, "
        "W_V M_o^1/2], each half divided by its norm. C is the covariance of the layer input (plus "
        "0.001 of its mean diagonal), M_q the second moment of the queries, and M_o = W_O W_O^T."
    ),
    "forecast": (
        "The rise of the loss on this text, in nats per token, if each head uses one tensor of "
        "head_dim channels (the best linear map of the layer input) as both key and value. W_Q and "
        "W_O are adapted; nothing is trained. For each KV head, the rise is half the sum of the "
        "squared singular values of C^1/2 [W_K, W_V] M^1/2 beyond the first head_dim; the forecast "
        "is the sum over heads. M is E[g g^T], where g is the gradient of the loss with respect to "
        "key and value (Gauss-Newton, damped). The tensor is chosen on one half of the windows and "
        "scored with the M of the other half, and then the other way round; the forecast is the "
        "mean of both scores. If a tensor were scored on the text on which it was chosen, the rise "
        "would look much too small (fitted_forecast in the JSON)."
    ),
    "random": (
        "The value that random weights give for the same tokens, from 8 pairs of weights sampled "
        "with the seed. For the columns “tokens” and “explained”, both weights have independent "
        "normal entries. For the columns “CKA” and “lost”, W_K M_q^1/2 and W_V M_o^1/2 keep their "
        "singular values, but use random orthogonal input directions. (A random W_K with the "
        "head's M_q would depend on the basis.) A constant offset of keys or values needs no "
        "cache, so the mean over tokens is always subtracted."
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
            draw=partial(layers_chart, layers),
            caption="Likeness and cost, by layer",
            detail="Left: the line shows the value for random weights. Right: a point is hollow "
            "where the forecast is not trusted.",
            file="layers",
        ),
        caveats=caveats,
        facts=tuple(_facts(analysis)),
        sections=(
            _compare_keys(layers, key_values),
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


def _compare_keys(layers: tuple[LayerAnalysis, ...], table: Table) -> Section:
    panels = tuple(
        Chart(draw=partial(spectrum_chart, layers[index]))
        for index in thinned(len(layers), MOST_PANELS)
    )
    return Section(
        key="keys-and-values",
        title="Keys and values",
        lead="These measures do not depend on the basis of a head. Below each value is the value "
        "for random weights.",
        blocks=(
            table,
            Group(
                title="Joint spectra",
                lead="The energy of keys and values that is lost if only the number of directions "
                "on the horizontal axis is kept, with one line for each KV head. The dashed line "
                "shows the number of channels of one tensor.",
                blocks=panels,
                layout="panels",
                file="spectra",
            ),
        ),
        brief=True,
    )


def _weights(*tables: Table) -> Section:
    return Section(
        key="weights",
        title="Weights",
        lead="These values depend on the basis of a head, which is arbitrary: training from a "
        "different initialization can give other values for the same function. Only the values of "
        "W_Q W_K^T do not depend on the basis.",
        blocks=tables,
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
            Group(blocks=(maps,), layout="alone"),
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
