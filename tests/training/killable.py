"""A process that has imported torch and forks a training run for each line that it reads.

So a test can kill hundreds of runs without importing torch hundreds of times. A line is a JSON
object: ``directory``, ``kind``, ``steps``, ``checkpoint_seconds``, ``keep``. The answers
are ``started PID`` and, when that process has ended, ``ended CODE``.
"""

import dataclasses
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from qkvary.tasks.contract import Task
from qkvary.training.config import RunConfig
from qkvary.training.loop import train
from tests.training.small_language import SmallLanguage, small_run
from tests.training.toy import ToyTask, toy_run


def make(kind: str, steps: int) -> tuple[RunConfig, Task]:
    """A classifier, or a language model with dropout that takes its batches in four parts."""
    if kind == "toy":
        return toy_run(steps=steps), ToyTask()
    run = small_run(steps=steps, dtype="float32", micro_batch_size=3)
    block = dataclasses.replace(run.network.block, dropout=0.1)
    return dataclasses.replace(
        run, network=dataclasses.replace(run.network, block=block)
    ), SmallLanguage()


def work(order: dict[str, Any]) -> None:
    run, task = make(order["kind"], order["steps"])
    outcome = train(
        run,
        task,
        Path(order["directory"]),
        checkpoint_seconds=order["checkpoint_seconds"],
        keep=order["keep"],
    )
    result = {"sha": outcome.state_sha256, "metrics": dict(outcome.metrics)}
    (Path(order["directory"]) / "result.json").write_text(json.dumps(result))


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(json.loads(line))
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                os._exit(code)
        sys.stdout.write(f"started {child}\n")
        sys.stdout.flush()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"ended {code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
