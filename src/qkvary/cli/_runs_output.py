"""What a training would make and what it reached, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from qkvary.cli._output import console, grouped, print_json, print_rows, printable
from qkvary.costs.network import network_costs
from qkvary.studies.catalog import load_utilization
from qkvary.studies.store import Store
from qkvary.studies.study import Study

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
    ("document_loss", "loss, a document a row"),
    ("paper_loss", "with padding, as published"),
    ("real_share", "share of real tokens"),
)
"""What the test at the end finds, and what it is called."""


def print_plan(study: Study, store: Store, *, json_output: bool) -> None:
    """Print what would be trained, or one JSON document of it."""
    (setting,) = study.settings
    rows: list[dict[str, Any]] = []
    for cell in study.cells():
        run = cell.run
        costs = network_costs(run.network, length=run.task.sequence_length)
        tokens = run.training.steps * run.training.batch_size * run.task.sequence_length
        rows.append(
            {
                "variant": cell.variant,
                "seed": cell.seed,
                "parameters": costs.parameters.total,
                "cache_bytes_per_token": costs.cache_bytes_per_token,
                "tokens": tokens,
                "petaflops": 6.0 * costs.macs_per_token * tokens / 1e15,
                "state": store.state(cell.run_key),
                "directory": str(store.directory(cell.run_key)),
            }
        )
    if json_output:
        print_json({"study": study.name, "task": setting.task, "runs": rows})
        return
    screen = console()
    screen.print(Text(printable(study.question), style="bold"))
    screen.print(Text(printable(study.description)))
    cells = [
        (
            row["variant"],
            str(row["seed"]),
            grouped(row["parameters"]),
            grouped(row["cache_bytes_per_token"]),
            grouped(row["tokens"]),
            f"{row['petaflops']:.3g}",
            row["state"],
        )
        for row in rows
    ]
    print_rows(screen, COLUMNS, cells)


def print_scores(screen: Console, study: Study, store: Store) -> None:
    """What each run that is done reached, by both conventions."""
    rows: list[tuple[str, ...]] = []
    utilization = load_utilization()
    for cell in study.cells():
        record = store.record(cell.run_key)
        if record is None or record.status != "done":
            continue
        found, run = record.metrics, cell.run
        tokens = run.training.batch_size * run.task.sequence_length
        steps = record.timing["steps_per_second"]
        flops = utilization.training_flops_per_second(run, steps)
        peak = utilization.product_flops_per_second(run) * record.environment.get("processes", 1)
        scores = (_score(found, f"test_{name}") for name, _ in SCORES)
        speed = (f"{steps * tokens:,.0f}", f"{flops / 1e9:,.1f}", f"{flops / peak:.0%}")
        rows.append((cell.variant, str(cell.seed), *scores, *speed))
    heads = ((head, "right") for _, head in SCORES)
    speeds = ((head, "right") for head in ("tokens/s", "GFLOP/s", "of a large product"))
    columns = (("variant", "left"), ("seed", "right"), *heads, *speeds)
    if rows:
        print_rows(screen, columns, rows)


def _score(metrics: Mapping[str, float | int | None], name: str) -> str:
    value = metrics.get(name)
    return "" if value is None else f"{value:.4f}"
