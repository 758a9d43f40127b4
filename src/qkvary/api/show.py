"""Show one run: its configuration, curves, metrics and environment."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from qkvary.api.results import Result
from qkvary.data.checkpoint_names import RUNS
from qkvary.reports.report import Prose, Report, Section, facts_section
from qkvary.reports.tables import pick
from qkvary.reports.terminal import sparkline
from qkvary.storage.errors import UsageError
from qkvary.storage.paths import StrPath, read_path
from qkvary.studies.running.records import Record
from qkvary.studies.running.store import Store
from qkvary.text.numbers import MISSING, real, whole
from qkvary.text.units import duration

SHOWN_MATCHES = 5


def show(run: str, *, out: StrPath = RUNS) -> Result[Record | None]:
    """Show one run: its configuration, curves, metrics and environment.

    Args:
        run: The run's key, or a unique beginning of it.
        out: Folder of runs and reports.

    Raises:
        ValueError: if no run or several have such a key.
        DamagedError: if the run is damaged.
    """
    store = Store(read_path(out))
    key = find_run(store, run)
    record, events = store.record(key), store.curve(key)
    state = record.status if record else store.state(key)
    owner = store.owner(key)
    report = Report(
        subject=f"run {key}",
        question=f"run {key}",
        lead=f"state: {state}"
        + ("" if owner is None else f", {owner}")
        + ("" if events else "; no step has been logged yet"),
        sections=(*(_list_facts(record) if record else ()), *_draw_curves(events)),
        data={
            "run_key": key,
            "state": state,
            "owner": owner and str(owner),
            "record": record,
            "events": events,
        },
    )
    return Result(record, report)


def find_run(store: Store, start: str) -> str:
    """Return the key of the only run whose key starts with ``start``.

    Raises:
        UsageError: if none or several match.
    """
    keys = store.keys()
    matches = [key for key in keys if key.startswith(start.lower())]
    if len(matches) == 1 and start:
        return matches[0]
    if not keys:
        raise UsageError(f"there are no runs in {store.path}; `qkvary study NAME` makes some")
    if not matches:
        raise UsageError(
            f"expected the start of a run's key, got {start!r}, which no run in {store.path} has"
        )
    some = ", ".join(key[:12] for key in matches[:SHOWN_MATCHES])
    more = ", ..." if len(matches) > SHOWN_MATCHES else ""
    raise UsageError(f"{len(matches)} runs start with {start!r}: {some}{more}; give more of it")


def _list_facts(record: Record) -> Iterator[Section]:
    about = pick(record, "task variant seed message started ended")
    yield facts_section("run", _flatten({name: one for name, one in about.items() if one != ""}))
    for name in ("metrics", "costs", "timing", "environment"):
        yield facts_section(name, _flatten(getattr(record, name)))
    yield facts_section("configuration", _flatten(record.config))


def _flatten(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested values with their paths as names."""
    for name, value in facts.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flatten(cast("Mapping[str, Any]", value), f"{path}.")
        else:
            yield path, _format_value(name, value)


def _format_value(name: str, value: object) -> str:
    if name.endswith("_seconds") and isinstance(value, float | int):
        return duration(float(value))
    if isinstance(value, float):
        return real(value, 4)
    if isinstance(value, int) and not isinstance(value, bool):
        return whole(value) if name != "seed" else str(value)
    return MISSING if value is None else str(value)


def _draw_curves(events: list[dict[str, Any]]) -> Iterator[Section]:
    """Yield a line of every logged figure over steps: losses, accuracies."""
    found: dict[str, dict[int, float]] = {}
    for event in events:
        if event.get("event") not in ("train", "validation"):
            continue
        for name, value in event.items():
            if isinstance(value, float) and name != "seconds":
                found.setdefault(f"{event['event']} {name}", {})[int(event["step"])] = value
    for name, by_step in sorted(found.items()):
        steps, values = zip(*sorted(by_step.items()), strict=True)
        figures = {
            "first": values[0],
            "lowest": min(values),
            "highest": max(values),
            "last": values[-1],
        }
        yield Section(
            key=name,
            title=f"{name}, steps {steps[0]:,} to {steps[-1]:,}",
            blocks=(
                Prose(sparkline(values)),
                Prose(", ".join(f"{part} {real(figure)}" for part, figure in figures.items())),
            ),
            brief=True,
        )
