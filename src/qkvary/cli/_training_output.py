"""How a training plan is printed, and written as JSON."""

from typing import Any

from rich.console import Console
from rich.text import Text

from qkvary.cli._plans import Question
from qkvary.cli._serving_output import quality_to_dict
from qkvary.cli._tables import print_table
from qkvary.planning.plans import TrainingAnswer
from qkvary.reports.tables import Table


def print_training(screen: Console, question: Question, variants: Table) -> None:
    """Print the table of variants."""
    said = f"Training on sequences of {question.context:,} tokens"
    screen.print(Text(f"\n{said}", style="bold"))
    print_table(screen, variants)


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
