"""Show one run: its configuration, curves, metrics and environment."""

from pathlib import Path

from qkvary.api.arguments import verb
from qkvary.api.results import Result
from qkvary.data.checkpoint_names import RUNS, find_run
from qkvary.reports.run import run_report
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import read_path
from qkvary.studies.records import Record
from qkvary.studies.running.store import Store


@verb
def show(run: str, *, out: Path = RUNS) -> Result[Record | None]:
    """Show one run: its configuration, curves, metrics and environment.

    Args:
        run: The run's folder, a unique beginning of its key, or FOLDER/START, the folder of runs
            and such a beginning.
        out: Folder of runs and reports, unless ``run`` names one.

    Raises:
        ValueError: if no key of a run, or more than one, starts with ``run``.
        DamagedError: if the run is damaged.
    """
    found = find_run(read_path(run, "the beginning of a run's key"), Store(out).path)
    # A store finds a run only in the folder of the first two digits of its key.
    if found is None or found.absolute().parent.name != found.name[:2]:
        raise UsageError(
            f"expected a run's folder, or the beginning of the key of a run in {out}, got {run!r}"
        )
    store, key = Store(found.absolute().parent.parent), found.name
    record, events = store.record(key), store.log_events(key)
    state = record.status if record else store.state(key)
    owner = store.owner(key)
    return Result(record, run_report(key, state, owner and str(owner), record, events))
