"""The planned runs of a training and their scores, as tables."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from qkvary.cli._output import show
from qkvary.cli._training_effort import count_passes, describe_effort, estimate_seconds
from qkvary.costs.network import network_costs
from qkvary.data.reuse import PlannedSet
from qkvary.reports.report import Report, Section
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
        costs = network_costs(run.network, length=run.sequence_length, dtype="bfloat16")
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
                "estimated_seconds": estimate_seconds(run, data),
                "state": store.state(cell.run_key) if is_prepared else "open",
                "directory": str(store.directory(cell.run_key)) if is_prepared else None,
            }
        )
    seconds = [row["estimated_seconds"] for row in rows]
    effort = describe_effort(study.cells()[0].run, training_tokens, seconds, data.text_bytes)
    table = tabulate(
        "runs",
        "Planned runs",
        rows,
        word("variant"),
        number("seed"),
        number("parameters", write=whole),
        number("cache_bytes_per_token", "cache bytes per token, bf16", whole),
        number("tokens", write=whole),
        number("petaflops", "PFLOP", "{:.3g}".format),
        word("state"),
        notes=[
            effort,
            *(
                [f"{data.name} is not prepared yet: the training prepares it first"]
                * (not is_prepared)
            ),
        ],
        main=True,
    )
    known = {"name": data.name, "vocabulary": data.vocabulary, "prepared": is_prepared}
    report = Report(
        subject=f"plan: {study.name}",
        question=study.question,
        lead=study.description,
        sections=(Section(key="runs", title="Planned runs", blocks=(table,), brief=True),),
        data={"study": study.name, "task": setting.task, "data": known, "runs": rows},
    )
    show(report, json_output=json_output)


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
    if rows:
        table = tabulate(
            "scores",
            "Scores",
            rows,
            word("variant=cell.variant"),
            number("seed=cell.seed"),
            *(number(f"test_{name}", title, _score) for name, title in SCORES),
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
