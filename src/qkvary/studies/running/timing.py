"""Times a few training steps to estimate how long the runs of a study take."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import cast

import numpy as np
import torch

from qkvary.arch.models import as_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.macs import forward_macs
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, QkvaryError
from qkvary.studies.study import Cell
from qkvary.tasks.catalog import load_task
from qkvary.tasks.config import TaskConfig
from qkvary.training.config import RunConfig
from qkvary.training.distribution import SingleProcess
from qkvary.training.gradients import Gradients
from qkvary.training.memory import require_device
from qkvary.training.optimizers import make_optimizer

TIMED_STEPS = 5
TIMED_TOKENS, MOST_TIMED_MACS = 64, 5_000_000_000
"""Maximum tokens of a row of a language model, and MACs of all rows of a timed forward pass."""
MOST_TIMED = 6
"""Number of networks whose steps are timed; those of others are interpolated by their MACs."""


def find_missing_data(cells: Sequence[Cell]) -> dict[Cell, str]:
    """Return the runs whose data cannot be read on this machine, each with the reason.

    Raises:
        DamagedError: if data is damaged.
    """
    reasons: dict[TaskConfig, str] = {}
    for task in dict.fromkeys(cell.run.task for cell in cells):
        try:
            load_task(task)
        except DamagedError:
            raise
        except (QkvaryError, OSError, RuntimeError) as error:
            reasons[task] = str(error)
    return {cell: reasons[cell.run.task] for cell in cells if cell.run.task in reasons}


def estimate_seconds(cells: Sequence[Cell]) -> float:
    """Return the seconds that one process needs for the training steps of some runs.

    Evaluations are not counted.

    Raises:
        QkvaryError: if the data of a task is not there.
    """
    macs = [_step_macs(cell.run) for cell in cells]
    runs = dict(zip(macs, (cell.run for cell in cells), strict=True))
    sizes = sorted(runs)
    chosen = np.unique(np.linspace(0, len(sizes) - 1, MOST_TIMED).round().astype(int))
    timed = [sizes[index] for index in chosen]
    seconds = np.interp(macs, timed, [time_step(runs[size]) for size in timed])
    steps = [cell.run.training.steps for cell in cells]
    return float(np.dot(seconds, steps))


def time_step(run: RunConfig) -> float:
    """Return the median seconds of a training step, after a first step that is not counted.

    Steps have the micro-batches and the precision of the run. On a processor, a step of many MACs
    is timed with fewer examples, and scaled.
    """
    require_device(run.device)
    whole = run.training.batch_size
    if run.device == "cpu":
        most = max(1, whole * MOST_TIMED_MACS // _step_macs(run))
        run = replace(run, training=replace(run.training, batch_size=min(whole, most)))
    torch.set_num_threads(run.threads)
    task = load_task(run.task)
    network = task.build(run.network, run.seed).to(run.device, getattr(torch, run.dtype)).train()
    optimizer = make_optimizer(network, run.network, run.training.optimizer)
    gradients = Gradients(run, task, network, SingleProcess())
    seconds: list[float] = []
    for step in range(TIMED_STEPS + 1):
        started = perf_counter()
        gradients.find(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run.device.startswith("cuda"):
            torch.cuda.synchronize(run.device)
        seconds.append(perf_counter() - started)
    return median(seconds[1:]) * whole / run.training.batch_size


@functools.lru_cache(maxsize=64)
def estimate_language_seconds(run: RunConfig) -> float:
    """Return the seconds that the training steps of a language model take on this processor.

    A small batch of arbitrary tokens is timed, so that no data is read, and scaled by its MACs.
    """
    torch.set_num_threads(run.threads)
    network, training = cast("LanguageModelConfig", run.network), run.training
    length = min(TIMED_TOKENS, run.sequence_length)
    macs = forward_macs(as_model(network), tokens=length, pairs="square").total
    rows = max(1, min(training.batch_size, MOST_TIMED_MACS // macs))
    sample = torch.zeros(rows, length, dtype=torch.long)
    model = LanguageModel(network).to(getattr(torch, run.dtype)).train()
    in_half = training.execution.precision == "bf16"
    seconds: list[float] = []
    # The first passes allocate memory.
    for _ in range(3):
        started = perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=in_half):
            loss = model(sample, targets=sample)
        loss.backward()
        seconds.append(perf_counter() - started)
    return min(seconds) * training.steps * _step_macs(run) / (rows * macs)


def _step_macs(run: RunConfig) -> int:
    model = as_model(run.network)
    forward = forward_macs(model, tokens=run.sequence_length, pairs="square")
    return forward.total * run.training.batch_size
