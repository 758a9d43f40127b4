"""Executes runs as tasks on an existing Ray cluster; Ray places them and repeats crashed ones."""

import importlib
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors.contract import (
    ClusterOptions,
    Executor,
    TaskEnd,
    WorkerTask,
    needed_resources,
)

_PREFIXES = ("QKVARY_", "OMP_", "MKL_")
"""Prefixes of the environment variables that this process passes on to tasks."""
_NAMES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "HF_HUB_OFFLINE",
    "TRACKIO_DIR",
    "WANDB_BASE_URL",
    "WANDB_ENTITY",
    "WANDB_MODE",
)
"""Other environment variables that are passed on. None of them holds a key or a token, because
everyone with access to the cluster can read them."""
CONNECT_SECONDS = 5.0
"""Maximum number of seconds to wait for a connection to the address of a cluster."""
_UNTIL_IT_ENDS = -1


class RayExecutor(Executor):
    """Executes tasks on a Ray cluster."""

    is_remote = True
    stop_seconds = 60.0

    def __init__(self, options: ClusterOptions, _folder: Path | None = None) -> None:
        """Connect to a running cluster."""
        self.options = options
        self._tasks: dict[Future[TaskEnd], Any] = {}
        """Ray's references to the unfinished tasks, by future."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray: Any = importlib.import_module("ray")
        self._is_mine = not self._ray.is_initialized()
        if self._is_mine:
            self._connect(options.address or os.environ.get("RAY_ADDRESS") or "auto")

    def _connect(self, address: str) -> None:
        try:
            if address == "auto":
                # A cluster that was killed leaves its address file.
                services: Any = importlib.import_module("ray._private.services")
                address = services.canonicalize_bootstrap_address_or_die(address)
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if port.isdigit():
                # If nothing listens there, Ray would wait for minutes.
                socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
            self._ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": passed_on()},
            )
        except (OSError, OverflowError, UnicodeError) as error:
            raise UsageError(
                f"no Ray cluster answers at {address!r}: start one with `ray start --head`, or "
                "give the address of a running one with --address"
            ) from error
        except (ValueError, RuntimeError) as error:
            raise UsageError(f"cannot connect to the Ray cluster {address!r}: {error}") from error

    # This executor accepts tasks only.
    def submit(  # type: ignore[override]
        self, fn: Callable[[WorkerTask], TaskEnd], task: WorkerTask, /
    ) -> Future[TaskEnd]:
        """Submit a task, which Ray repeats if its worker or node dies."""
        needs = needed_resources(task, self.options.gpu_share)
        remote = self._ray.remote(fn).options(
            name=task.cells[0].title,
            num_cpus=needs.cores,
            num_gpus=needs.gpus,
            memory=needs.memory_bytes,
            max_retries=_UNTIL_IT_ENDS,
        )
        reference = remote.remote(task)
        future: Future[TaskEnd] = reference.future()
        self._tasks[future] = reference
        future.add_done_callback(self._tasks.pop)
        return future

    def stop(self) -> None:
        """Interrupt the running tasks, and drop the waiting tasks."""
        self._cancel(force=False)

    def kill(self) -> None:
        """Kill the running tasks, and drop the waiting tasks."""
        self._cancel(force=True)

    def _cancel(self, *, force: bool) -> None:
        for reference in list(self._tasks.values()):
            self._ray.cancel(reference, force=force)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Disconnect from the cluster, unless the caller had connected to it."""
        if self._is_mine:
            self._ray.shutdown()


def passed_on() -> dict[str, str]:
    """Return the environment variables that tasks get."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PREFIXES) or name in _NAMES
    }
    return {**found, "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder)}


open_executor = RayExecutor
