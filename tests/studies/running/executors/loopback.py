"""A Ray cluster on loopback."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.studies.toy_study import ROOT

NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
STEP_SECONDS = 0.05
"""Seconds of a step of the toy worker."""


@contextmanager
def start_cluster() -> Iterator[Any]:
    """Two nodes with one core each; it takes half a minute to start."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("TOY_STEP_SECONDS", str(STEP_SECONDS))
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
        head = {**NODE, "include_dashboard": False}
        running = Cluster(initialize_head=True, head_node_args=head)
        running.add_node(**NODE)
        yield running
        running.shutdown()
