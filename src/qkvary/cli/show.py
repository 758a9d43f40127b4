"""Show one run: its configuration, curves, metrics and environment."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from qkvary.cli._options import DEFAULT_OUT, Json, Out
from qkvary.cli._output import console, print_json, printable, sparkline
from qkvary.reports.terminal import print_rows
from qkvary.storage.errors import UsageError
from qkvary.studies.running.records import Record
from qkvary.studies.running.store import Store
from qkvary.text.numbers import MISSING, real, whole
from qkvary.text.units import duration

SHOWN_MATCHES = 5

Run = Annotated[str, Parameter(help="The run's key, or a unique beginning of it.")]


def command(run: Run, /, *, out: Out = DEFAULT_OUT, json_output: Json = False) -> None:
    """Show one run: its configuration, curves, metrics and environment."""
    store = Store(out)
    key = find_run(store, run)
    record, events = store.record(key), store.curve(key)
    state = record.status if record else store.state(key)
    if json_output:
        document = {"run_key": key, "state": state, "owner": _owner(store, key)}
        print_json({**document, "record": record, "events": events})
        return
    screen = console()
    screen.print(Text.assemble(("run ", "bold"), key))
    screen.print(Text(f"state: {state}" + (f", {owner}" if (owner := _owner(store, key)) else "")))
    if record is not None:
        _print_record(screen, record)
    for name, curve in _curves(events):
        values = [value for _, value in curve]
        screen.print(Text(f"\n{name}, steps {curve[0][0]:,} to {curve[-1][0]:,}", style="bold"))
        screen.print(Text(sparkline(values, width=min(80, screen.width - 2))))
        numbers = (values[0], min(values), max(values), values[-1])
        parts = zip(("first", "lowest", "highest", "last"), numbers, strict=True)
        screen.print(Text(", ".join(f"{part} {real(number)}" for part, number in parts)))
    if not events:
        screen.print("no step has been logged yet")


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


def _owner(store: Store, key: str) -> str | None:
    owner = store.owner(key)
    return None if owner is None else str(owner)


def _print_record(screen: Console, record: Record) -> None:
    about = {
        "task": record.task,
        "variant": record.variant,
        "seed": record.seed,
        "message": record.message,
        "started": record.started,
        "ended": record.ended,
    }
    parts: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("", {name: value for name, value in about.items() if value != ""}),
        ("metrics", record.metrics),
        ("costs", record.costs),
        ("timing", record.timing),
        ("environment", record.environment),
        ("configuration", record.config),
    )
    for title, facts in parts:
        if title:
            screen.print(Text(f"\n{title}", style="bold"))
        print_rows(screen, (("", "left"), ("", "left")), list(_flatten(facts)))


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
    return printable(MISSING if value is None else str(value))


def _curves(events: list[dict[str, Any]]) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Yield every logged figure over steps: training loss, validation loss and accuracy."""
    found: dict[str, dict[int, float]] = {}
    for event in events:
        if event.get("event") not in ("train", "validation"):
            continue
        for name, value in event.items():
            if isinstance(value, float) and name != "seconds":
                found.setdefault(f"{event['event']} {name}", {})[int(event["step"])] = value
    for name, steps in sorted(found.items()):
        yield name, sorted(steps.items())
