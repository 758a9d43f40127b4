"""Copies the log of a run to an experiment tracker. Torch-free until a tracker is opened.

The log itself is the run's ``metrics.jsonl``. A copy is never read back, and no error of a tracker
ends a run.
"""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from qkvary.arch.parts import check_word
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.packages import require

TrackerName = Literal["tensorboard", "trackio", "wandb"]
_NOT_CURVES = ("event", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The facts about a run that are sent to a tracker."""

    project: str
    """The name of the study or training."""
    name: str
    """The name of the run: its title and the start of its key."""
    config: Mapping[str, Any]
    folder: Path


class _Opened(NamedTuple):
    log: Callable[..., None]
    finish: Callable[[], None]


def _open(tracker: TrackerName, run: TrackedRun, first_step: int) -> _Opened:
    """Open a tracker. TensorBoard writes to ``FOLDER/tensorboard/PROJECT/NAME/``."""
    if tracker == "tensorboard":
        directory = run.folder / "tensorboard" / run.project / run.name
        # Hides entries from this step on, left by an earlier process that was killed.
        board: Any = import_module("torch.utils.tensorboard")
        writer = board.SummaryWriter(str(directory), purge_step=first_step)

        def log(values: Mapping[str, float | str], step: int) -> None:
            for name, value in values.items():
                add = writer.add_text if isinstance(value, str) else writer.add_scalar
                add(name, value, step)

        return _Opened(log, writer.close)
    # trackio has the functions of wandb.
    if tracker == "trackio":
        library, own = cast("Any", import_module("trackio")), {}
    else:
        library, own = cast("Any", import_module("wandb")), {"id": run.name, "dir": str(run.folder)}
    library.init(project=run.project, name=run.name, config=dict(run.config), resume="allow", **own)
    return _Opened(library.log, library.finish)


def require_tracker(name: str) -> None:
    """Refuse a tracker that is unknown or not installed."""
    check_word("log", name, get_args(TrackerName))
    require(name)


class LogCopy:
    """Copies the log of one run to a tracker. The first entry opens the tracker."""

    def __init__(
        self, tracker: TrackerName | None, run: TrackedRun, warn: Callable[[str], None]
    ) -> None:
        self._name: TrackerName | None = tracker
        self._run, self._warn = run, warn
        self._opened: _Opened | None = None

    def log(self, entry: Mapping[str, JsonValue]) -> None:
        """Copy the values of one entry of the log, under the names ``<event>/<name>``."""
        if self._name is None:
            return
        step = cast("int", entry["step"])
        values = {
            f"{entry['event']}/{name}": value
            for name, value in entry.items()
            if name not in _NOT_CURVES and isinstance(value, int | float | str)
        }
        with self._guard():
            if self._opened is None:
                # A resumed run repeats the entries after its checkpoint's step, but not those of
                # that step.
                first = step + (entry["event"] == "resumed")
                self._opened = _open(self._name, self._run, first)
            self._opened.log(values, step=step)

    def close(self) -> None:
        """Close the tracker."""
        if self._opened is not None:
            with self._guard():
                self._opened.finish()
            self._opened = None

    @contextmanager
    def _guard(self) -> Generator[None]:
        """Return a context that stops the copying, but not the run, if the tracker fails."""
        try:
            # Libraries announce themselves; standard output is for results.
            with redirect_stdout(sys.stderr):
                yield
        # Trackers raise all kinds of exceptions, and no copy of a log is worth a run.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._warn(f"stopped copying the log to {self._name}: {type(error).__name__}: {error}")
            self._name, self._opened = None, None
