"""List the states of runs: done, running, open, failed, diverged or damaged."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from qkvary.cli._options import (
    DEFAULT_OUT,
    DEFAULT_PART,
    Json,
    Out,
    Part,
    choose_study,
    complete_study,
)
from qkvary.cli._output import show
from qkvary.cli._trainings import choose_training
from qkvary.reports.report import Report, Section
from qkvary.reports.tables import number, tabulate, word
from qkvary.storage.errors import DamagedError
from qkvary.studies.running.store import Store
from qkvary.text.names import count

RunState = Literal["done", "failed", "diverged", "running", "open", "damaged"]
STATES: tuple[RunState, ...] = ("done", "failed", "diverged", "running", "open", "damaged")
PROBLEMS: tuple[RunState, ...] = ("failed", "diverged", "damaged")

OptionalStudy = Annotated[
    str | None,
    Parameter(
        help="A study by name or path, or a training; all runs if not given.",
        completer=complete_study,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of one run."""

    run_key: str
    group: str
    """The variant, or task and variant without a study."""
    state: RunState
    note: str
    """The owner, the reason of a failure, or the damage."""


def command(
    study: OptionalStudy = None,
    /,
    *,
    part: Part = DEFAULT_PART,
    out: Out = DEFAULT_OUT,
    problems: Annotated[
        bool,
        Parameter(help="List only failed, diverged and damaged."),
    ] = False,
    json_output: Json = False,
) -> None:
    """List the states of runs: done, running, open, failed, diverged or damaged."""
    store = Store(out)
    if study is None:
        planned = dict.fromkeys(store.keys(), "")
    else:
        training = choose_training(store, study, part)
        chosen = choose_study(study, part) if training is None else training.study
        planned = {cell.run_key: cell.variant for cell in chosen.cells()}
    statuses = [_read_status(store, key, group) for key, group in planned.items()]
    counts = Counter(status.state for status in statuses)
    report = Report(
        subject="runs",
        question="In which states are the runs?",
        answer=tuple(_answer(statuses, out, problems=problems)),
        sections=() if problems or not statuses else (_section(statuses),),
        data={
            "study": study,
            "runs": {"total": len(statuses), **{state: counts[state] for state in STATES}},
            "listed": [one for one in statuses if one.note or not problems],
        },
    )
    show(report, json_output=json_output)


def _answer(statuses: Sequence[RunStatus], out: Path, *, problems: bool) -> Iterator[str]:
    """Yield what is to be said of single runs."""
    if not statuses:
        yield f"there are no runs in {out}; `qkvary study NAME` makes some"
    elif problems and not any(one.state in PROBLEMS for one in statuses):
        yield f"{count(len(statuses), 'run')}: none failed, none diverged, none is damaged"
    for one in statuses:
        if one.note and (one.state != "running" or not problems):
            yield f"{one.run_key[:12]} {one.state}: {one.note}"


def _read_status(store: Store, key: str, group: str) -> RunStatus:
    try:
        record = store.record(key)
    except DamagedError as error:
        return RunStatus(run_key=key, group=group or "?", state="damaged", note=str(error))
    if record is not None:
        name = group or f"{record.task} {record.variant}"
        return RunStatus(run_key=key, group=name, state=record.status, note=record.message)
    owner = store.owner(key)
    state: RunState = "running" if owner else store.state(key)
    return RunStatus(run_key=key, group=group or "not finished", state=state, note=str(owner or ""))


def _section(statuses: Sequence[RunStatus]) -> Section:
    groups: dict[str, Counter[str]] = {}
    for status in statuses:
        groups.setdefault(status.group, Counter())[status.state] += 1
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
