"""Seconds that a Ray cluster adds to a run: 1,000 runs of nothing on two cores.

A run claims its folder, writes a record and ends. The cluster has one node with two cores, and its
workers have imported torch before the clock starts; starting both takes about half a minute.
"""

import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path

from qkvary.papers.ours.studies.quickstart import STUDY
from qkvary.storage.environment import now
from qkvary.studies.records import make_record
from qkvary.studies.running.executors.contract import ClusterOptions
from qkvary.studies.running.executors.ray import RayExecutor
from qkvary.studies.running.runner import RunSummary, StudyRunner
from qkvary.studies.running.store import RunResult, Store
from qkvary.studies.study import Cell, Study
from timing.interleaved import Timing, print_case, read_quick

RUNS, QUICK_RUNS, WARM_RUNS = 1000, 10, 4
CORES = 2
MOST_SECONDS = 0.2


def train_cell(cell: Cell, _directory: Path, /, **_options: object) -> RunResult:
    """Return the record of a run without training it; the nodes import this file."""
    return RunResult(record=make_record(cell, status="done", started=now()))


def study_of(runs: int, first_seed: int) -> Study:
    """Return a study of one network with so many seeds."""
    return dataclasses.replace(
        STUDY,
        settings=STUDY.settings[:1],
        variants=("QKV",),
        contrasts=(),
        seeds=tuple(range(first_seed, first_seed + runs)),
    )


def measure(runs: int) -> float:
    """Return the seconds per run of a study on the connected cluster, with warm workers."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))

        def run(study: Study) -> RunSummary:
            # It leaves the connection of its caller, with which the workers would end.
            executor = RayExecutor(ClusterOptions())
            trainer = Path(__file__).stem
            return StudyRunner(study, store, executor=executor, trainer=trainer).run()

        run(study_of(WARM_RUNS, 10**6))
        start = time.perf_counter()
        summary = run(study_of(runs, 0))
        seconds = time.perf_counter() - start
    if summary.done != runs:
        raise RuntimeError(f"{runs - summary.done} runs are not done: {summary}")
    return seconds / runs


def main() -> None:
    """Measure once."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    node = {"num_cpus": CORES, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        runs = QUICK_RUNS if read_quick() else RUNS
        timing = Timing({"run": [measure(runs)], "goal": [MOST_SECONDS]})
        print_case(
            "cluster_overhead",
            "seconds per run of nothing on a warm Ray cluster with a common folder, over 0.2",
            timing.ratio("run", "goal"),
            goal=1.0,
            better="lower",
            timing=timing,
        )
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
