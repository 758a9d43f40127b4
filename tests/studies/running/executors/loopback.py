"""A Ray cluster on loopback."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from qkvary.studies.running.executors.contract import ClusterOptions
from qkvary.studies.running.executors.ray import RayExecutor
from tests.studies.toy_study import ROOT

STEP_SECONDS = 0.05
"""Seconds of a step of the toy worker."""
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


class Loopback:
    """Nodes with one core each; each has a temporary folder that no other node uses.

    This process stays connected, so that the workers of the nodes import their libraries once.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        """Start two nodes, and connect."""
        from ray.cluster_utils import Cluster

        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("TOY_STEP_SECONDS", str(STEP_SECONDS))
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
        self.folder = folder
        self._cluster = Cluster()
        self._nodes: dict[Path, Any] = {}
        self.add_node(include_dashboard=False)
        self.complete()
        self.address = str(self._cluster.address)
        RayExecutor(ClusterOptions(address=self.address))

    @property
    def folders(self) -> list[Path]:
        """The temporary folders of all nodes, also of those that were killed."""
        return sorted(self.folder.iterdir())

    def add_node(self, **others: Any) -> None:
        """Start another node."""
        folder = self.folder / str(len(self.folders))
        folder.mkdir()
        variables = {"TMPDIR": str(folder)}
        self._nodes[folder] = self._cluster.add_node(**NODE, **others, env_vars=variables)

    def complete(self) -> None:
        """Start a second node if there is none; Ray does this in the main thread only."""
        if len(self._nodes) < 2:
            self.add_node()

    def kill_node(self, pid: int) -> None:
        """Kill the node of a process, and the process."""
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        (found,) = (path for path in self._nodes if f"TMPDIR={path}".encode() in environment)
        os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(self._nodes.pop(found), allow_graceful=False)

    def holds(self, pid: int) -> bool:
        """Return whether a process is one of the first node, which cannot be killed."""
        with suppress(FileNotFoundError):
            return str(self.folders[0]).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def stop(self) -> None:
        """Disconnect, and stop all nodes."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()
