"""The share of a study's wall time that is spent in training steps.

The rest is what a study adds: starting a worker, data, evaluation, attention maps, records. Two
seeds of ``quickstart`` are run as ``qkvary study`` runs them, with one worker and a new store. That
takes some minutes; starting a worker takes about three seconds once, so less would not tell.
"""

import dataclasses
import tempfile
import time
from pathlib import Path

from qkvary.papers.ours.studies.quickstart import STUDY
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import StudyRunner
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from timing.interleaved import Timing, print_case, read_quick

SEEDS = 2
QUICK_STEPS = 60
LEAST_SHARE = 0.9
PARTS = ("training_seconds", "evaluation_seconds", "total_seconds")


def quick_study() -> Study:
    """One short run, which shows that the benchmark works and no more."""
    setting = STUDY.settings[0]
    training = dataclasses.replace(setting.training, steps=QUICK_STEPS)
    setting = dataclasses.replace(setting, training=training)
    return dataclasses.replace(
        STUDY, settings=(setting,), variants=("QKV",), contrasts=(), seeds=(0,)
    )


def run_fresh(study: Study) -> tuple[float, dict[str, float]]:
    """The wall time of a study, and the seconds that its runs spent on each part of their work."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        start = time.perf_counter()
        summary = StudyRunner(study, store, executor=LocalExecutor(1)).run()
        wall = time.perf_counter() - start
        if summary.done != summary.planned:
            raise RuntimeError(f"{summary.planned - summary.done} runs are not done: {summary}")
        records = [store.record(cell.run_key) for cell in study.cells()]
    timings = [record.timing for record in records if record is not None]
    return wall, {name: sum(timing[name] for timing in timings) for name in PARTS}


def main() -> None:
    """Measure once."""
    full = dataclasses.replace(STUDY, seeds=STUDY.seeds[:SEEDS])
    wall, spent = run_fresh(quick_study() if read_quick() else full)
    seconds = {name.removesuffix("_seconds"): [spent[name]] for name in PARTS}
    timing = Timing({"wall": [wall], **seconds})
    print_case(
        "study_overhead",
        "training steps over wall time: quickstart, one worker",
        timing.ratio("training", "wall"),
        goal=LEAST_SHARE,
        better="higher",
        timing=timing,
    )


if __name__ == "__main__":
    main()
