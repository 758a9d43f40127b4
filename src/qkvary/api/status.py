"""List the states of runs: done, running, open, failed, diverged or damaged."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from qkvary.api.arguments import verb
from qkvary.api.options import PART, AnyStudy, Part, choose_runs
from qkvary.api.results import Result
from qkvary.data.checkpoint_names import RUNS
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import number, tabulate, word
from qkvary.storage.errors import UsageError
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.text.names import count

RunOutcome = Literal["done", "failed", "diverged", "running", "open", "damaged"]
STATES: tuple[RunOutcome, ...] = get_args(RunOutcome)
PROBLEMS = ("failed", "diverged", "damaged")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of one run."""

    run_key: str
    group: str
    """The variant, or the task and the variant if no study is given."""
    state: RunOutcome
    note: str
    """Detail of the state: the process that trains the run, the step at which it stopped, the
    reason for a failure, or the damage."""


@verb
def status(
    study: AnyStudy | None = None,
    *,
    part: Part = PART,
    out: Path = RUNS,
    problems: bool = False,
) -> Result[tuple[RunStatus, ...]]:
    """List the states of runs: done, running, open, failed, diverged or damaged.

    Args:
        study: A study by name or path, or a training; all runs if not given. In Python also a
            ``qk.Study``.
        part: The part of the study.
        out: Folder of runs and reports.
        problems: List only failed, diverged and damaged runs.

    Raises:
        ValueError: if there is no such study.
    """
    store = Store(out)
    if study is None:
        if part != PART:
            raise UsageError(
                "expected the name of a study with --seeds, --task and the like, got none"
            )
        planned = dict.fromkeys(store.keys(), "")
    else:
        selected, _ = choose_runs(store, study, part)
        planned = {cell.run_key: cell.variant for cell in selected.cells()}
    found = tuple(_read_status(store, key, group) for key, group in planned.items())
    counts = Counter(one.state for one in found)
    listed = [one for one in found if one.note and (one.state in PROBLEMS or not problems)]
    answer = [f"{one.run_key[:12]} {one.state}: {one.note}" for one in listed]
    if not found:
        answer = [f"there are no runs in {store.path}; `qkvary study NAME` runs a study"]
    elif problems and not any(counts[state] for state in PROBLEMS):
        answer = [f"{count(len(found), 'run')}: none failed, none diverged, none is damaged"]
    report = Report(
        subject="runs",
        question="What are the states of the runs?",
        answer=tuple(answer),
        sections=() if problems or not found else (_section(found),),
        data={
            "study": study.name if isinstance(study, Study) else study,
            "runs": {"total": len(found), **{state: counts[state] for state in STATES}},
            "listed": listed if problems else found,
        },
    )
    return Result(found, report)


def _read_status(store: Store, key: str, group: str) -> RunStatus:
    # Networks may be large, and are checked when they are loaded.
    damage = store.find_damage(key, with_networks=False)
    if damage is not None:
        return RunStatus(run_key=key, group=group or "?", state="damaged", note=damage)
    record = store.record(key)
    if record is not None:
        name = group or f"{record.task} {record.variant}"
        return RunStatus(run_key=key, group=name, state=record.status, note=record.message)
    owner = store.owner(key)
    state: RunOutcome = "running" if owner else store.state(key)
    step = store.newest_step(key)
    note = str(owner or (f"stopped at step {step:,}" if step else ""))
    name = group or store.describe(key) or "not finished"
    return RunStatus(run_key=key, group=name, state=state, note=note)


def _section(found: Sequence[RunStatus]) -> Section:
    groups: dict[str, Counter[str]] = {}
    for one in found:
        groups.setdefault(one.group, Counter())[one.state] += 1
    groups["all"] = sum(groups.values(), Counter[str]())
    table = tabulate(
        "runs",
        "Runs",
        [{"group": name, "runs": states.total(), **states} for name, states in groups.items()],
        word("group", ""),
        number("runs"),
        *map(number, STATES),
        main=True,
    )
    return Section(key="runs", title="Runs", blocks=(table,), brief=True)
