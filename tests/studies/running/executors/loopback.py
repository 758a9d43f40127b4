"""A Ray cluster on loopback."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qkvary.studies.running.executors.ray import passed_on
from tests.studies.toy_study import ROOT

STEP_SECONDS = 0.05
"""Seconds of a step of the toy worker."""


def node(folder: Path) -> dict[str, Any]:
    """The options of a node with one core; ``folder`` holds the files that no other node sees."""
    folder.mkdir()
    variables = {"TMPDIR": str(folder)}
    return {"num_cpus": 1, "object_store_memory": 100 * 2**20, "env_vars": variables}


@contextmanager
def start_cluster(folder: Path) -> Iterator[Any]:
    """Two nodes with one core each, whose temporary folders are below ``folder``."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("TOY_STEP_SECONDS", str(STEP_SECONDS))
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
        head = {**node(folder / "first"), "include_dashboard": False}
        running = Cluster(initialize_head=True, head_node_args=head)
        running.add_node(**node(folder / "second"))
        yield running
        disconnect()
        running.shutdown()


def connect(cluster: Any) -> None:
    """Connect this process; it stays connected, so that workers import their libraries once."""
    import ray

    if not ray.is_initialized():
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": passed_on()},
        )


def disconnect() -> None:
    """Disconnect this process."""
    import ray

    ray.shutdown()
