"""Estimates the time that runs take, from the time of a few training steps."""

import functools
import math
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
from qkvary.nn.devices import require_device
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.threads import use_threads
from qkvary.storage.errors import DamagedError, MisfitError, QkvaryError
from qkvary.studies.study import Cell
from qkvary.tasks.catalog import load_task
from qkvary.tasks.config import TaskConfig
from qkvary.training.config import RunConfig
from qkvary.training.distribution import SINGLE_PROCESS, Gradients
from qkvary.training.optimizers import make_optimizer

TIMED_STEPS = 5
MOST_TIMED_MACS = 2_000_000_000
"""Maximum number of MACs of a timed forward pass, over all rows."""
FEWEST_TIMED_TOKENS, FEWEST_TIMED_ROWS = 64, 8
"""For timing a language model: minimum number of tokens per row, and number of rows that must fit
in the limit before another layer is timed."""
MOST_TIMED = 6
"""Maximum number of networks whose steps are timed. The times of other networks are interpolated by
their MACs."""
TIMED_SECONDS = 5.0
"""Time limit, in seconds, for timing the steps of all networks together."""
TIMED_VOCABULARY = 1_024
"""Maximum vocabulary size of a timed language model; a larger vocabulary is cut."""
FORWARD_SHARE = 1 / 3
"""Share of the time of a training step that its forward pass takes."""


def find_missing_data(cells: Sequence[Cell]) -> dict[Cell, str]:
    """Return the runs whose data cannot be read on this machine, each with the reason."""
    reasons: dict[TaskConfig, str] = {}
    for task in dict.fromkeys(cell.run.task for cell in cells):
        try:
            load_task(task)
        except (DamagedError, MisfitError):
            raise
        except (QkvaryError, OSError, RuntimeError) as error:
            reasons[task] = str(error)
    return {cell: reasons[cell.run.task] for cell in cells if cell.run.task in reasons}


def estimate_seconds(cells: Sequence[Cell]) -> float:
    """Return the seconds that one process needs for the training steps of runs.

    Timing takes a few seconds in total, divided among networks of different sizes.
    """
    macs = [_step_macs(cell.run) for cell in cells]
    runs = dict(zip(macs, (cell.run for cell in cells), strict=True))
    sizes = sorted(runs)
    chosen = np.unique(np.linspace(0, len(sizes) - 1, MOST_TIMED).round().astype(int))
    timed = [sizes[index] for index in chosen]
    found: list[float] = []
    for size in timed:
        with use_threads(runs[size].threads):
            found.append(time_step(runs[size], TIMED_SECONDS / len(timed)))
    steps = [cell.run.training.steps for cell in cells]
    return float(np.dot(np.interp(macs, timed, found), steps))


def time_step(run: RunConfig, seconds: float = math.inf) -> float:
    """Return the median time of a training step, in seconds.

    The first step is not counted. Micro-batches and precision are those of the run. On a CPU, a
    large batch is replaced by a smaller one, and the measured time is scaled up.
    """
    end = perf_counter() + seconds
    whole = run.training.batch_size
    if run.device == "cpu":
        most = max(1, whole * MOST_TIMED_MACS // _step_macs(run))
        run = replace(run, training=replace(run.training, batch_size=min(whole, most)))
    require_device(run.device)
    task = load_task(run.task)
    network = task.build(run.network, run.seed).to(run.device, getattr(torch, run.dtype))
    network.train()
    optimizer = make_optimizer(network, run.network, run.training.optimizer)
    gradients = Gradients(run, task, network, SINGLE_PROCESS)
    found: list[float] = []
    for step in range(TIMED_STEPS + 1):
        if step > 1 and perf_counter() > end:
            break
        started = perf_counter()
        gradients.accumulate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run.device.startswith("cuda"):
            torch.cuda.synchronize(run.device)
        found.append(perf_counter() - started)
    return median(found[1:]) * whole / run.training.batch_size


def estimate_language_seconds(run: RunConfig, scored_tokens: int = 0) -> float:
    """Return the time for training and scoring a language model on this processor, in seconds.

    Only one layer, or several small layers, are timed on arbitrary tokens. The time is scaled up by
    MACs. So neither the data nor the whole network is needed.
    """
    network, training = cast("LanguageModelConfig", run.network), run.training
    each = _time_layers(network, run.threads, run.dtype, training.execution.precision == "bf16")
    tokens = run.tokens_per_step
    per_token = _step_macs(run) / tokens
    return each * per_token * (training.steps * tokens + FORWARD_SHARE * scored_tokens)


@functools.lru_cache(maxsize=64)
def _time_layers(network: LanguageModelConfig, threads: int, dtype: str, in_half: bool) -> float:
    """Return the seconds of a training step per MAC of its forward pass.

    The fastest of three steps counts. The first step allocates memory, and other processes can slow
    a step down.
    """
    vocabulary = min(network.vocabulary, TIMED_VOCABULARY)
    small = replace(network, attention=network.layers[0], num_layers=1, vocabulary=vocabulary)
    most, length = MOST_TIMED_MACS // 10, network.max_tokens
    row = forward_macs(as_model(small), tokens=length, pairs="square").total
    layers = max(1, min(network.num_layers, most // (FEWEST_TIMED_ROWS * row)))
    length = min(length, max(FEWEST_TIMED_TOKENS, length * MOST_TIMED_MACS // row))
    small = replace(small, num_layers=layers)
    macs = forward_macs(as_model(small), tokens=length, pairs="square").total
    rows = max(1, most // macs)
    found: list[float] = []
    with use_threads(threads):
        model = LanguageModel(small).to(getattr(torch, dtype)).train()
        sample = torch.zeros(rows, length, dtype=torch.long)
        for _ in range(3):
            started = perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=in_half):
                loss = model(sample, targets=sample)
            loss.backward()
            found.append(perf_counter() - started)
    return min(found) / (rows * macs)


def _step_macs(run: RunConfig) -> int:
    model = as_model(run.network)
    forward = forward_macs(model, tokens=run.sequence_length, pairs="square")
    return forward.total * run.training.batch_size
