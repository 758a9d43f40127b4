"""Recomputes tables and statements of the poster "Do Transformers Need Three Projections?"."""

import dataclasses
import functools
from collections.abc import Callable

from qkvary.papers import quantities as costs
from qkvary.papers.derivation import (
    Alternative,
    Derivation,
    Registry,
    by_column,
    by_row,
    printed_value,
    variant_of,
)
from qkvary.papers.three_projections.recomputations import (
    LARGE,
    SUMMARY,
    change_large,
    derive_cache_gb,
    derive_change,
    derive_large_reduction,
    derive_reduction,
    derive_token_kb,
)
from qkvary.papers.three_projections.recomputations_text import attention_parameter_share
from qkvary.papers.training_runs import RUN_300M, RUN_1200M, derive_steps, derive_tokens
from qkvary.studies.published_tables import PublishedFigure

DOWNSTREAM = "poster-downstream"


def _downstream_reduction(figure: PublishedFigure) -> Derivation:
    label = variant_of(figure)
    slip = Alternative(
        value=costs.cache_reduction(label),
        convention="taking the number for the 300M network, which has 16 heads",
    )
    slips = (slip,) if label == "Q-MQA" else ()
    return dataclasses.replace(derive_reduction(label, "1.2B"), slips=slips)


def _accuracy() -> Derivation:
    own, base = (printed_value(DOWNSTREAM, row, "accuracy") for row in ("Q-K=V", "QKV"))
    return Derivation(
        value=own - base,
        formula=f"{own:.2f} - {base:.2f}",
        convention="percentage points, not percent of the accuracy",
        note="The standard error of these means is about half a point; chance level is 35.0 %.",
    )


def _shrinks() -> Derivation:
    small = derive_change("Q-K=V")
    large = derive_change("Q-K=V", LARGE, "perplexity")
    low = small.spread[0] if small.spread else 0.0
    high = large.spread[1] if large.spread else 0.0
    return Derivation(
        value=f"{float(small.value):+.2f} % at 300M, {float(large.value):+.2f} % at 1.2B",
        formula="change from QKV to Q-K=V, computed from the published perplexities",
        holds=high < low,
        note=(
            "Learning rate, warm-up and batch size differ between the two sizes, and there is only "
            "one seed per variant and size."
        ),
    )


_ACCUMULATED = (
    "The poster states 36 accumulated micro-batches for both sizes. The code for 300M has 24 "
    "micro-batches of 6 rows, which give 10 billion tokens; 36 would need 4 rows."
)
_ROWS: dict[str, Callable[[], Derivation]] = {
    "attention's share of parameters (%)": attention_parameter_share,
    "QKV cache at 300M (KB a token)": lambda: derive_token_kb("QKV"),
    **{
        f"{label} cache at {words} (GB)": functools.partial(derive_cache_gb, label, "300M", tokens)
        for label in ("QKV", "Q-K=V")
        for words, tokens in (("32K", costs.TOKENS_32K), ("128K", costs.TOKENS_128K))
    },
    "perplexity change of Q-K=V at 1.2B (%)": lambda: derive_change("Q-K=V", LARGE, "perplexity"),
    "accuracy of Q-K=V against QKV": _accuracy,
    "perplexity change of Q-K=V shrinks with size": _shrinks,
    "steps at 300M": lambda: derive_steps(RUN_300M, _ACCUMULATED),
    "steps at 1.2B": lambda: derive_steps(RUN_1200M, "8,475 steps are 9.998 billion tokens."),
    "tokens at 300M (billions)": lambda: derive_tokens(RUN_300M, 4_238, _ACCUMULATED),
    "tasks": lambda: Derivation(value=5 + 6 + 1, formula="5 synthetic + 6 vision + 1 language"),
    "tokens at 1.2B (billions)": lambda: derive_tokens(RUN_1200M, 8_475),
}

TABLES: Registry = {
    "poster-300m": by_column(SUMMARY),
    "poster-1.2b": by_column(
        {
            "change": change_large,
            "cache_reduction": lambda figure: derive_large_reduction(variant_of(figure)),
        }
    ),
    "poster-operating-points": by_column(SUMMARY),
    DOWNSTREAM: by_column({"cache_reduction": _downstream_reduction}),
    "poster-text": by_row(_ROWS),
}
