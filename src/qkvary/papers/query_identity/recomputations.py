"""Recomputes Table 2 and the claims of "[Key,Value] is probably all you need"."""

import math
from collections.abc import Mapping

from qkvary.arch.models import as_model
from qkvary.arch.named_networks import gpt_124m
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.parameters import ParameterCount, model_parameters
from qkvary.papers.derivation import Derivation, Registry, by_column, by_row
from qkvary.papers.training_runs import RUN_124M
from qkvary.studies.published_tables import PublishedFigure

NETWORKS: Mapping[str, LanguageModelConfig] = {
    "Baseline (124M)": gpt_124m(),
    "Baseline, smaller MLP (117M)": gpt_124m(d_ff=2688),
    "Baseline, smaller d (118M)": gpt_124m(d_model=744),
    "Reduced (117M)": gpt_124m("I-K-V"),
    "Reduced, larger MLP (124M)": gpt_124m("I-K-V", d_ff=3456),
}
"""The network of each row of Table 2."""

_NO_BIASES = "no biases, tied head"


def _count(row: str) -> ParameterCount:
    return model_parameters(as_model(NETWORKS[row]))


def _blocks(row: str) -> int:
    """Return the number of parameters without the two embedding tables."""
    count = _count(row)
    return count.total - count.embedding - count.positions


def _removed() -> int:
    return _blocks("Baseline (124M)") - _blocks("Reduced (117M)")


def _total(figure: PublishedFigure) -> Derivation:
    return Derivation(
        value=_count(figure.row).total / 10**6,
        formula="(50,304 + 1,024) d + layers x (matrices x d^2 + 2 d d_ff + 2 d) + d",
        convention=_NO_BIASES,
    )


def _non_embedding(figure: PublishedFigure) -> Derivation:
    return Derivation(
        value=_blocks(figure.row) / 10**6,
        formula="layers x (matrices x d^2 + 2 d d_ff + 2 d) + d",
        convention=f"{_NO_BIASES}; both tables left out",
    )


def _attention_saved() -> Derivation:
    before, after = (_count(row).attention for row in ("Baseline (124M)", "Reduced (117M)"))
    return Derivation(
        value=100 * (1 - after / before),
        formula="one of four d x d matrices",
        convention="output projection included",
    )


def _blocks_saved() -> Derivation:
    return Derivation(
        value=100 * _removed() / _blocks("Baseline (124M)"),
        formula=f"{_removed():,} / {_blocks('Baseline (124M)'):,}",
        convention="parameters without the token and position embeddings",
    )


def _score_ratio() -> Derivation:
    network = gpt_124m("I-K-V")
    std, width = network.init.std, network.d_model
    return Derivation(
        value=1 / (std * math.sqrt(width)),
        formula="1 / (0.02 x sqrt(768))",
        convention="normed layer inputs, weights with standard deviation 0.02",
        note="The divisor depends on width and initialisation. Here it is 1.8, which rounds to 2.",
    )


_ROWS = {
    "attention parameters saved (%)": _attention_saved,
    "transformer block parameters saved (%)": _blocks_saved,
    "fewer non-embedding parameters (%)": _blocks_saved,
    "parameters saved (millions)": lambda: Derivation(
        value=_removed() / 10**6, formula="layers x d^2", convention="no biases"
    ),
    "tokens per gradient step": lambda: Derivation(
        value=RUN_124M.tokens_per_step,
        formula=RUN_124M.formula,
        convention="settings of the public code",
    ),
    "divisor of scores with an identity query": _score_ratio,
}

TABLES: Registry = {
    "query-identity-table-2": by_column({"parameters": _total, "non_embedding": _non_embedding}),
    "query-identity-text": by_row(_ROWS),
}
