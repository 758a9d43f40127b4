"""The report of one run: its configuration, curves, metrics and environment."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from qkvary.reports.report import Prose, Report, Section, facts_section
from qkvary.reports.tables import pick
from qkvary.reports.terminal import sparkline
from qkvary.studies.results.learning_curves import group_by_quantity
from qkvary.text.numbers import MISSING, duration, real, whole


def run_report(
    key: str,
    state: str,
    owner: str | None,
    record: Any,
    events: Sequence[Mapping[str, Any]],
) -> Report:
    """Return the report of a run.

    ``owner`` names the process that holds the run. ``record`` is ``None`` before the run ends.
    """
    said = f"state: {state}" + ("" if owner is None else f", {owner}")
    return Report(
        subject=f"run {key}",
        question=f"run {key}",
        lead=said + ("" if events else "; no step has been logged yet"),
        sections=(*(_list_facts(record) if record else ()), *_draw_curves(events)),
        data={
            "run_key": key,
            "state": state,
            "owner": owner,
            "record": record,
            "events": events,
        },
    )


def _list_facts(record: Any) -> Iterator[Section]:
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


def _draw_curves(events: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
    """Yield a section per logged quantity (losses, accuracies), with a sparkline over steps."""
    for name, by_step in sorted(group_by_quantity(events).items()):
        steps = sorted(by_step)
        values = [by_step[step][0] for step in steps]
        ends = f"first {real(values[0])}", f"last {real(values[-1])}"
        said = (ends[0], f"lowest {real(min(values))}", f"highest {real(max(values))}", ends[1])
        yield Section(
            key=name,
            title=f"{name}, steps {steps[0]:,} to {steps[-1]:,}",
            blocks=(Prose(sparkline(values)), Prose(", ".join(said))),
            brief=True,
        )
