"""Show one run: its configuration, curves, metrics and environment."""

from pathlib import Path

from qkvary.api.arguments import verb
from qkvary.api.results import Result
from qkvary.data.checkpoint_names import RUNS
from qkvary.reports.run import run_report
from qkvary.storage.errors import UsageError
from qkvary.studies.records import Record
from qkvary.studies.running.store import Store
from qkvary.text.names import count


@verb
def show(run: str, *, out: Path = RUNS) -> Result[Record | None]:
    """Show one run: its configuration, curves, metrics and environment.

    Args:
        run: The run's key, or a unique beginning of the key.
        out: Folder of runs and reports.

    Raises:
        ValueError: if no key of a run, or more than one, starts with ``run``.
        DamagedError: if the run is damaged.
    """
    store = Store(out)
    keys = store.keys()
    matches = [key for key in keys if key.startswith(run.lower())]
    if len(matches) != 1:
        raise UsageError(
            f"expected the beginning of exactly one run's key in {store.path}, got {run!r}, "
            f"the beginning of {count(len(matches), 'key')}"
        )
    (key,) = matches
    record, events = store.record(key), store.log_events(key)
    state = record.status if record else store.state(key)
    owner = store.owner(key)
    return Result(record, run_report(key, state, owner and str(owner), record, events))
