"""Copies the log of a run to a tracker of experiments. Torch-free until one is opened.

The log itself is the run's ``metrics.jsonl``; a copy is never read back, and no error of a tracker
ends a run. Every tracker has one shape: it is opened with a ``TrackedRun``, and has ``log`` and
``finish``.
"""

import importlib
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.packages import require

TrackerName = Literal["tensorboard", "trackio", "wandb"]
FILE_TRACKERS: tuple[TrackerName, ...] = ("tensorboard", "trackio")
"""Trackers that write files on the machine of a run."""
_NOT_CURVES = ("event", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run, as trackers name it."""

    project: str
    """The study or training."""
    name: str
    """The run, by its title and the start of its key."""
    config: Mapping[str, Any]
    """The configuration of the run, as JSON values."""
    folder: Path
    """The folder of all copies, for trackers that write files of their own."""


class Tracker(Protocol):
    """An opened tracker."""

    def log(self, values: Mapping[str, float | str], step: int) -> None:
        """Log values by name."""
        ...

    def finish(self) -> None:
        """Write what is pending, and close."""
        ...


class _TensorBoard:
    """Event files, ``FOLDER/tensorboard/PROJECT/NAME/``."""

    def __init__(self, run: TrackedRun, first_step: int) -> None:
        library: Any = importlib.import_module("torch.utils.tensorboard")
        directory = run.folder / "tensorboard" / run.project / run.name
        # Hides later entries of an earlier, killed process.
        self._writer = library.SummaryWriter(str(directory), purge_step=first_step)

    def log(self, values: Mapping[str, float | str], step: int) -> None:
        for name, value in values.items():
            add = self._writer.add_text if isinstance(value, str) else self._writer.add_scalar
            add(name, value, step)

    def finish(self) -> None:
        self._writer.close()


class _Project:
    """A project of Weights & Biases, or of trackio, which has the same functions."""

    def __init__(self, library: str, run: TrackedRun, **options: Any) -> None:
        self._library: Any = importlib.import_module(library)
        self._library.init(
            project=run.project, name=run.name, config=dict(run.config), resume="allow", **options
        )

    def log(self, values: Mapping[str, float | str], step: int) -> None:
        self._library.log(dict(values), step=step)

    def finish(self) -> None:
        self._library.finish()


def _open(tracker: TrackerName, run: TrackedRun, first_step: int) -> Tracker:
    if tracker == "tensorboard":
        return _TensorBoard(run, first_step)
    if tracker == "trackio":
        return _Project("trackio", run)
    return _Project("wandb", run, id=run.name, dir=str(run.folder))


class LogCopy:
    """Copies the log of one run to a tracker, which is opened at the first entry."""

    def __init__(
        self, tracker: TrackerName | None, run: TrackedRun, warn: Callable[[str], None]
    ) -> None:
        """Prepare a copy.

        Args:
            tracker: The tracker; None for no copy.
            run: The run.
            warn: Called with the reason if the tracker fails; then the copy ends, not the run.
        """
        self._name: TrackerName | None = tracker
        self._run, self._warn = run, warn
        self._opened: Tracker | None = None

    def log(self, entry: Mapping[str, JsonValue]) -> None:
        """Copy one entry of the log, as ``<event>/<name>``."""
        if self._name is None:
            return
        step = cast("int", entry["step"])
        values = {
            f"{entry['event']}/{name}": value
            for name, value in entry.items()
            if name not in _NOT_CURVES and isinstance(value, int | float | str)
        }
        with self._report_errors():
            if self._opened is None:
                # A resumed run repeats the entries after its checkpoint, not those at its step.
                first = step + (entry["event"] == "resumed")
                self._opened = _open(self._name, self._run, first)
            self._opened.log(values, step)

    def finish(self) -> None:
        """End the copy."""
        if self._opened is None:
            return
        with self._report_errors():
            self._opened.finish()
        self._opened = None

    @contextmanager
    def _report_errors(self) -> Generator[None]:
        """End the copy, and not the run, when the library fails."""
        try:
            # Libraries announce themselves; standard output is for results.
            with redirect_stdout(sys.stderr):
                yield
        # A library of others can raise any exception; some end the process without a login.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._warn(f"{self._name} gets no more of the log: {type(error).__name__}: {error}")
            self._name, self._opened = None, None


def require_tracker(tracker: TrackerName | None) -> None:
    """Check that the library of a tracker is installed.

    Raises:
        UsageError: if it is not; the message says how to install it.
    """
    if tracker is not None:
        require(tracker)
