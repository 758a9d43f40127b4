"""The share of a study's wall time that is spent in training steps.

The rest is what a study adds: starting a worker, data, evaluation, attention maps, records. Parts
of ``quickstart`` are run as ``qkvary study`` runs them, with one worker and a store of their own. A
part is shorter than the study, so that starting the worker weighs more than it really does.
"""

import dataclasses
import tempfile
import time
from pathlib import Path

from qkvary.studies.definitions.quickstart import STUDY
from qkvary.studies.runner import RunnerOptions, run_study
from qkvary.studies.store import Store
from qkvary.studies.study import Setting, Study
from timing.interleaved import Effort, Timing, print_case, read_effort

FULL = Effort(rounds=3, turn_seconds=60.0)
QUICK = Effort(rounds=1, turn_seconds=1.0)
QUICK_STEPS = 60
LEAST_SHARE = 0.9


def cut_study(part: int, effort: Effort) -> Study:
    """One seed of a share of the variants; in a quick round one variant, one setting, few steps."""
    if effort == QUICK:
        return dataclasses.replace(
            STUDY, settings=(shorten(STUDY.settings[0]),), variants=("QKV",), seeds=(0,)
        )
    variants = STUDY.variants[part :: effort.rounds]
    return dataclasses.replace(
        STUDY, variants=tuple(dict.fromkeys(("QKV", *variants))), seeds=(part,)
    )


def shorten(setting: Setting) -> Setting:
    """The setting with few steps."""
    training = dataclasses.replace(setting.training, steps=QUICK_STEPS)
    return dataclasses.replace(setting, training=training)


def run_part(study: Study) -> tuple[float, dict[str, float]]:
    """The wall time of a study, and the seconds that its runs spent on each part of their work."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        start = time.perf_counter()
        summary = run_study(study, store, RunnerOptions(workers=1, quiet=True))
        wall = time.perf_counter() - start
        if summary.done != summary.planned:
            raise RuntimeError(f"{summary.planned - summary.done} runs are not done: {summary}")
        spent: dict[str, float] = {}
        for cell in study.cells():
            record = store.record(cell.run_key)
            for name, seconds in ({} if record is None else record.timing).items():
                spent[name] = spent.get(name, 0.0) + seconds
    return wall, spent


def main() -> None:
    """Measure all parts."""
    effort = read_effort(full=FULL, quick=QUICK)
    seconds: dict[str, list[float]] = {"wall": [], "training": [], "evaluation": [], "runs": []}
    for part in range(effort.rounds):
        wall, spent = run_part(cut_study(part, effort))
        seconds["wall"].append(wall)
        seconds["training"].append(spent["training_seconds"])
        seconds["evaluation"].append(spent["evaluation_seconds"])
        seconds["runs"].append(spent["total_seconds"])
    timing = Timing(seconds)
    print_case(
        "study_overhead",
        "training steps over wall time: quickstart in parts, one worker",
        timing.ratio("training", "wall"),
        goal=LEAST_SHARE,
        better="higher",
        timing=timing,
    )


if __name__ == "__main__":
    main()
