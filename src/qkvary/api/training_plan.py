"""Plans a training: costs, passes over the text, time, and the steps that fit into a given time."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from qkvary.arch.models import as_model
from qkvary.costs.network import network_costs
from qkvary.costs.training import training_macs_per_token
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import number, tabulate, word
from qkvary.storage.errors import UsageError
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.studies.training_study import count_passes, describe_effort
from qkvary.studies.trainings import find_steps
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.text.numbers import whole
from qkvary.training.config import RunConfig

if TYPE_CHECKING:
    from qkvary.data.prepared_sets import PlannedSet

TEST_PASSES = 3
"""Number of forward passes over the test split: in windows, in padded and in unpadded documents."""
FIRST_STEPS = 1_000
"""Number of steps from which ``choose_steps`` starts its estimate."""


def estimate_seconds(run: RunConfig, planned: "PlannedSet") -> float | None:
    """Return the estimated seconds of steps and evaluations on this CPU; None on other devices."""
    if run.device != "cpu":
        return None
    # This import needs torch, which the help does not.
    from qkvary.studies import timing

    return timing.estimate_language_seconds(replace(run, seed=0), count_scored(run, planned))


def count_scored(run: RunConfig, planned: "PlannedSet") -> int:
    """Return the number of tokens scored by all validations and the test together.

    The size of a split that is not prepared yet is unknown. The split is then assumed to have the
    requested number of tokens, but at most one token per byte of the text.
    """
    task = cast("LanguageTaskConfig", run.task)
    splits = {} if planned.prepared is None else planned.prepared.splits
    held_out, test = (
        splits[name].tokens if name in splits else None for name in ("validation", "test")
    )
    unknown = planned.text_bytes
    wanted = ((task.validation_tokens, held_out), (task.test_tokens, test or held_out))
    each, last = (
        min((one for one in (*limits, unknown) if one is not None), default=0) for limits in wanted
    )
    return each * -(-run.training.steps // run.training.evaluate_every) + TEST_PASSES * last


def choose_steps(
    minutes: float, study_of: Callable[[int], Study], planned: "PlannedSet", store: Store
) -> int:
    """Return how many steps fit into ``minutes`` on this machine, to two significant digits.

    The minutes include the validations and the test of the first run. The number of steps is
    rounded down. If the store already has this training, perhaps with other execution settings,
    variants or seeds, the stored number of steps is returned, so that the training is resumed.
    """
    if not 0 < minutes < math.inf:
        raise UsageError(f"expected a number of minutes above 0, got {minutes}")
    if (noted := find_steps(store, minutes, study_of)) is not None:
        return noted
    steps = FIRST_STEPS
    # The time of the validations depends on the steps.
    for _ in range(3):
        run = study_of(steps).cells()[0].run
        seconds = estimate_seconds(run, planned)
        if seconds is None:
            raise UsageError(
                f"expected --steps on {run.device}, got --minutes: times can be estimated only "
                "for the CPU"
            )
        steps = max(1, int(steps * 60 * minutes / seconds))
    digits = max(0, len(str(steps)) - 2)
    return steps // 10**digits * 10**digits


def plan_report(study: Study, store: Store, planned: "PlannedSet") -> Report:
    """Return the report of the planned runs."""
    is_prepared = planned.prepared is not None
    training_tokens = None if planned.prepared is None else planned.prepared.splits["train"].tokens
    (setting,) = study.settings
    rows: list[dict[str, Any]] = []
    for cell in study.cells():
        run = cell.run
        costs = network_costs(run.network, length=run.sequence_length, dtype="bfloat16")
        tokens = run.training.steps * run.tokens_per_step
        macs = training_macs_per_token(as_model(run.network), tokens=run.sequence_length)
        rows.append(
            {
                "variant": cell.variant,
                "seed": cell.seed,
                "parameters": costs.parameters.total,
                "cache_bytes_per_token": costs.cache_bytes_per_token,
                "tokens": tokens,
                "petaflops": 2 * macs * tokens / 1e15,
                "passes": count_passes(run, training_tokens),
                "estimated_seconds": estimate_seconds(run, planned),
                "state": store.state(cell.run_key) if is_prepared else "open",
                "directory": str(store.directory(cell.run_key)) if is_prepared else None,
            }
        )
    seconds = [row["estimated_seconds"] for row in rows]
    effort = describe_effort(study.cells()[0].run, training_tokens, seconds, planned.text_bytes)
    unprepared = f"{planned.name} is not prepared yet: training will prepare it before it starts"
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
        notes=[effort] if is_prepared else [effort, unprepared],
        main=True,
    )
    known = {"name": planned.name, "vocabulary": planned.vocabulary, "prepared": is_prepared}
    return Report(
        subject=f"plan: {study.name}",
        question=study.question,
        lead=study.description,
        sections=(Section(key="runs", title="Planned runs", blocks=(table,), brief=True),),
        data={
            "study": study.name,
            "task": setting.task,
            "data": known,
            "threads": setting.training.execution.threads,
            "runs": rows,
        },
    )
