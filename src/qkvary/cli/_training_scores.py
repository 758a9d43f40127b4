"""The scores of the runs of a training, as a table in the terminal."""

from collections.abc import Mapping

from rich.console import Console

from qkvary.reports.tables import number, tabulate, word
from qkvary.reports.terminal import print_table
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.text.numbers import whole

SCORES = (
    ("loss", "loss"),
    ("perplexity", "perplexity"),
    ("bits_per_byte", "bits per byte"),
    ("document_loss", "loss, a document per row"),
)
"""The metrics of the final test, with their titles."""
PADDED = (
    ("paper_loss", "with padding, as published"),
    ("real_share", "share of real tokens"),
)
"""Those that differ only where rows are padded."""


def print_scores(screen: Console, study: Study, store: Store) -> None:
    """Print the scores of each finished run, by both conventions, and its speed."""
    records = [(cell, store.record(cell.run_key)) for cell in study.cells()]
    done = [(cell, record) for cell, record in records if record and record.status == "done"]
    measured = any("utilization" in record.timing for _, record in done)
    rows = [
        {
            "cell": cell,
            "tokens": record.timing["steps_per_second"]
            * cell.run.training.batch_size
            * cell.run.sequence_length,
            "timing": record.timing,
            **record.metrics,
        }
        for cell, record in done
    ]
    utilization = (
        number("gigaflops=timing", "GFLOP/s", _gigaflops),
        number("share=timing", "of a large product", _share),
    )
    padded = PADDED if any(row.get("test_real_share") != 1.0 for row in rows) else ()
    if rows:
        table = tabulate(
            "scores",
            "Scores",
            rows,
            word("variant=cell.variant"),
            number("seed=cell.seed"),
            *(number(f"test_{name}", title, _score) for name, title in (*SCORES, *padded)),
            number("tokens", "tokens/s", whole),
            *(utilization if measured else ()),
            main=True,
        )
        print_table(screen, table)


def _gigaflops(timing: Mapping[str, float]) -> str:
    """Return the operations per second as measured at the end."""
    share, whole_flops = timing.get("utilization"), timing.get("product_flops_per_second")
    return "" if share is None or whole_flops is None else f"{share * whole_flops / 1e9:,.1f}"


def _share(timing: Mapping[str, float]) -> str:
    """Return the share of the operations per second of one large product."""
    share, possible = timing.get("utilization"), timing.get("product_flops_per_second")
    return "" if share is None or possible is None else f"{share:.0%}"


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
