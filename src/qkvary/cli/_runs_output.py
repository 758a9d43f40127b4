"""The planned runs of a training and their scores, as tables."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from qkvary.cli._output import console, print_json, printable
from qkvary.cli._training_effort import count_passes, describe_effort, estimate_seconds
from qkvary.costs.network import network_costs
from qkvary.data.reuse import PlannedSet
from qkvary.reports.terminal import print_rows
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.text.numbers import whole

COLUMNS = (
    ("variant", "left"),
    ("seed", "right"),
    ("parameters", "right"),
    ("cache bytes per token", "right"),
    ("tokens", "right"),
    ("PFLOP", "right"),
    ("state", "left"),
)
SCORES = (
    ("loss", "loss"),
    ("perplexity", "perplexity"),
    ("bits_per_byte", "bits per byte"),
    ("document_loss", "loss, a document per row"),
    ("paper_loss", "with padding, as published"),
    ("real_share", "share of real tokens"),
)
"""The metrics of the final test, with their titles."""


def print_plan(study: Study, store: Store, data: PlannedSet, *, json_output: bool) -> None:
    """Print the planned runs, as a table or as JSON.

    Args:
        study: The runs.
        store: Their store.
        data: The training data; a run without prepared data has no key yet.
        json_output: Whether to print JSON.
    """
    is_prepared = data.data is not None
    training_tokens = None if data.data is None else data.data.splits["train"].tokens
    (setting,) = study.settings
    rows: list[dict[str, Any]] = []
    for cell in study.cells():
        run = cell.run
        costs = network_costs(run.network, length=run.sequence_length)
        tokens = run.training.steps * run.training.batch_size * run.sequence_length
        rows.append(
            {
                "variant": cell.variant,
                "seed": cell.seed,
                "parameters": costs.parameters.total,
                "cache_bytes_per_token": costs.cache_bytes_per_token,
                "tokens": tokens,
                "petaflops": 6.0 * costs.macs_per_token * tokens / 1e15,
                "passes": count_passes(run, training_tokens),
                "estimated_seconds": estimate_seconds(run),
                "state": store.state(cell.run_key) if is_prepared else "open",
                "directory": str(store.directory(cell.run_key)) if is_prepared else None,
            }
        )
    if json_output:
        known = {"name": data.name, "vocabulary": data.vocabulary, "prepared": is_prepared}
        print_json({"study": study.name, "task": setting.task, "data": known, "runs": rows})
        return
    screen = console()
    screen.print(Text(printable(study.question), style="bold"))
    screen.print(Text(printable(study.description)))
    cells = [
        (
            row["variant"],
            str(row["seed"]),
            whole(row["parameters"]),
            whole(row["cache_bytes_per_token"]),
            whole(row["tokens"]),
            f"{row['petaflops']:.3g}",
            row["state"],
        )
        for row in rows
    ]
    print_rows(screen, COLUMNS, cells)
    seconds = [row["estimated_seconds"] for row in rows]
    effort = describe_effort(study.cells()[0].run, training_tokens, seconds, data.text_bytes)
    screen.print(Text(effort))
    if not is_prepared:
        screen.print(
            Text(printable(f"{data.name} is not prepared yet: the training prepares it first"))
        )


def print_scores(screen: Console, study: Study, store: Store) -> None:
    """Print the scores of each finished run, by both conventions, and its speed."""
    records = [(cell, store.record(cell.run_key)) for cell in study.cells()]
    done = [(cell, record) for cell, record in records if record and record.status == "done"]
    measured = any("utilization" in record.timing for _, record in done)
    rows: list[tuple[str, ...]] = []
    for cell, record in done:
        scores = (_score(record.metrics, f"test_{name}") for name, _ in SCORES)
        tokens = cell.run.training.batch_size * cell.run.sequence_length
        speed = f"{record.timing['steps_per_second'] * tokens:,.0f}"
        shares = _utilization(record.timing) if measured else ()
        rows.append((cell.variant, str(cell.seed), *scores, speed, *shares))
    heads = ((head, "right") for _, head in SCORES)
    speeds = ("tokens/s", *(("GFLOP/s", "of a large product") if measured else ()))
    columns = (
        ("variant", "left"),
        ("seed", "right"),
        *heads,
        *((head, "right") for head in speeds),
    )
    if rows:
        print_rows(screen, columns, rows)


def _utilization(timing: Mapping[str, float]) -> tuple[str, str]:
    """Return operations per second and their share of the peak, as measured at the end."""
    share, whole = timing.get("utilization"), timing.get("product_flops_per_second")
    if share is None or whole is None:
        return "", ""
    return f"{share * whole / 1e9:,.1f}", f"{share:.0%}"


def _score(metrics: Mapping[str, float | int | None], name: str) -> str:
    value = metrics.get(name)
    return "" if value is None else f"{value:.4f}"
