"""The report of a training that is planned."""

from typing import Any

from qkvary.api.training_effort import count_passes, describe_effort, estimate_seconds
from qkvary.costs.network import network_costs
from qkvary.data.prepared_sets import PlannedSet
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import number, tabulate, word
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.text.numbers import whole


def plan_report(study: Study, store: Store, data: PlannedSet) -> Report:
    """Return the report of the planned runs.

    Args:
        study: The runs.
        store: Their store.
        data: The training data; a run without prepared data has no key yet.
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
    return Report(
        subject=f"plan: {study.name}",
        question=study.question,
        lead=study.description,
        sections=(Section(key="runs", title="Planned runs", blocks=(table,), brief=True),),
        data={"study": study.name, "task": setting.task, "data": known, "runs": rows},
    )
