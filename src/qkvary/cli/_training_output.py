"""How a training plan is printed, and written as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from qkvary.cli._output import print_rows
from qkvary.cli._plans import Question
from qkvary.cli._serving_output import describe_change, quality_to_dict
from qkvary.planning.plans import TrainingAnswer
from qkvary.planning.training_advice import TrainedVariant
from qkvary.text.numbers import change, compact, share, whole
from qkvary.text.units import data_size

COLUMNS = (
    ("variant", "left"),
    ("parameters", "right"),
    ("weights + optimizer", "right"),
    ("per sequence", "right"),
    ("batch", "right"),
    ("MACs/token", "right"),
    ("tokens/s", "right"),
    ("published tokens/s", "right"),
    ("published %", "right"),
)


def print_training(
    screen: Console, question: Question, rows: Sequence[TrainedVariant], *, decimal: bool
) -> None:
    """Print the table of variants."""
    base = rows[0]
    screen.print(
        Text(
            f"\nTraining on sequences of {question.context:,} tokens, "
            f"{question.purpose.precision} precision, at {share(question.utilization)} of "
            "the matrix rate",
            style="bold",
        )
    )
    print_rows(
        screen,
        COLUMNS,
        (
            (
                row.label + (" *" if row.is_original else ""),
                compact(row.parameters),
                data_size(row.plan.state_bytes, decimal=decimal),
                data_size(row.plan.sequence_bytes, decimal=decimal),
                whole(row.plan.largest_batch),
                _macs(row, base),
                compact(row.plan.tokens_per_second),
                whole(row.published_tokens_per_second),
                describe_change(row.quality),
            )
            for row in rows
        ),
    )
    screen.print(
        Text(
            "per sequence: activations of a fused softmax core and logits in 32 bits; batch: "
            "sequences beside weights and optimizer on one device; published tokens/s: paper 1's "
            "own machines, its 300M networks; published %: change of perplexity, and what its "
            "digits leave open",
            style="dim",
        )
    )


def _macs(row: TrainedVariant, base: TrainedVariant) -> str:
    own, first = row.plan.macs_per_token, base.plan.macs_per_token
    return f"{compact(own)} ({change(own, first)})"


def training_to_dict(answer: TrainingAnswer) -> dict[str, Any]:
    """The answer as JSON-ready data."""
    return {
        "rows": [
            {
                "variant": row.label,
                "original": row.is_original,
                "parameters": {"total": row.parameters},
                "state_bytes": row.plan.state_bytes,
                "sequence_bytes": row.plan.sequence_bytes,
                "largest_batch": row.plan.largest_batch,
                "macs_per_token": row.plan.macs_per_token,
                "tokens_per_second": row.plan.tokens_per_second,
                "published_tokens_per_second": row.published_tokens_per_second,
                "quality": quality_to_dict(row.quality),
            }
            for row in answer.rows
        ],
        "advice": answer.advice,
        "caveats": answer.caveats,
    }
