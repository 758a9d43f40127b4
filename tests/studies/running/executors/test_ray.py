"""A Ray cluster of two nodes on loopback: pytest -m cluster."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkvary.studies.running.executors.contract import ClusterOptions
from qkvary.studies.running.runner import RunnerOptions, run_study
from qkvary.studies.running.store import Store
from tests.studies import toy_worker
from tests.studies.toy_study import ROOT, ends, leftovers, run_toy, starts, table, toy_study

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with one core each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
        node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
        running = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        running.add_node(**node)
        yield running
        running.shutdown()


@pytest.fixture
def executor(cluster: Any) -> Any:
    from qkvary.studies.running.executors.ray import RayExecutor

    return RayExecutor(ClusterOptions(address=cluster.address), toy_worker.train_cell)


def test_a_study_on_two_nodes_equals_one_on_this_machine(executor: Any, tmp_path: Path) -> None:
    study = toy_study(range(10))
    root, other = tmp_path / "ray", tmp_path / "local"
    for place in (root, other):
        place.mkdir()
    options = RunnerOptions(executor=executor, quiet=True)
    summary = run_study(study, Store(root / "runs"), options)
    assert (summary.done, summary.executed, summary.missing) == (20, 20, 0)
    assert set(starts(root).values()) == set(ends(root).values()) == {1}
    run_toy(study, other)
    assert table(study, root) == table(study, other)
    assert leftovers(root) == []
