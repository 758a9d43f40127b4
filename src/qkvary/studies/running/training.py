"""Trains the network of one run in the run's folder, and makes the record of the run."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from qkvary.checkpoints.models import save_model
from qkvary.inference.decoding import generate
from qkvary.inference.samples import TextSampler
from qkvary.nn.kernels import name_kernel
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import now
from qkvary.storage.errors import UsageError
from qkvary.studies.records import make_record
from qkvary.studies.running.cells import DEFAULT_OPTIONS, CellOptions
from qkvary.studies.running.store import RunResult, network_name
from qkvary.studies.study import Cell
from qkvary.tasks.catalog import load_task
from qkvary.tasks.contract import ShowsSamples, Task
from qkvary.tasks.example_files import maps_to_bytes, samples_to_bytes
from qkvary.training.config import ExecutionSettings
from qkvary.training.distribution import SINGLE_PROCESS, Distribution
from qkvary.training.loop import train
from qkvary.training.memory import keep_freed_memory
from qkvary.training.progress import NO_CALLBACKS, Callbacks
from qkvary.training.utilization import measure_utilization

load_cell_task = functools.lru_cache(maxsize=8)(load_task)
"""Like :func:`load_task`, but the latest eight tasks of this process are kept."""


def train_cell(
    cell: Cell,
    directory: Path,
    /,
    *,
    stop: Callable[[], bool],
    callbacks: Callbacks = NO_CALLBACKS,
    options: CellOptions = DEFAULT_OPTIONS,
    distribution: Distribution = SINGLE_PROCESS,
    requested: ExecutionSettings | None = None,
    task: Task | None = None,
) -> RunResult | None:
    """Train the network of a run in its folder; return None if it was stopped.

    ``cell`` has the execution settings with which the run began. If ``requested`` is given, the
    remaining steps use these settings.
    """
    keep_freed_memory()
    started, task = now(), task or load_cell_task(cell.run.task)
    run = cell.run if requested is None else cell.run.with_execution_settings(requested)

    def save_network(step: int | None, network: nn.Module) -> None:
        saved = cast("LanguageModel", network)
        save_model(directory / network_name(step), saved, task.tokenizer)

    outcome = train(
        run,
        task,
        directory,
        stop=stop,
        callbacks=replace(
            callbacks,
            network_steps=frozenset(step for step in cell.kept_networks if step is not None),
            on_network=save_network,
            sample=_sampler(cell, task, options.sample),
            generate=generate,
        ),
        distribution=distribution,
        checkpoint_seconds=options.checkpoint_seconds,
        keep=options.keep,
        stored=cell.run,
    )
    if outcome.status == "stopped":
        return None
    changed = cell.run.execution_settings.differences(run.execution_settings)
    is_shown = outcome.status == "done" and distribution.is_first
    if is_shown and None in cell.kept_networks:
        save_network(None, outcome.network)
    speed = outcome.timing["steps_per_second"] if is_shown else 0.0
    keys, layers = cell.run.sequence_length, cell.run.network.layers
    is_gpu = torch.device(run.device).type == "cuda"
    kernels = {name_kernel(layer, keys, training=True) for layer in layers}
    record = make_record(
        cell,
        status=outcome.status,
        started=started,
        message=outcome.message,
        metrics=outcome.metrics,
        timing={**outcome.timing, **measure_utilization(run, speed, processes=distribution.size)},
        environment={
            "torch": str(torch.__version__),
            "device": run.device,
            **({"gpu": torch.cuda.get_device_name(run.device)} if is_gpu else {}),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "kernel": " and ".join(sorted(kernels)),
            "processes": distribution.size,
            **({"changed": changed} if changed else {}),
        },
        state_sha256=outcome.state_sha256,
    )
    return RunResult(
        record=record,
        attention=None if outcome.attention is None else maps_to_bytes(outcome.attention),
        samples=_samples(task, outcome.network) if is_shown else None,
    )


def _sampler(cell: Cell, task: Task, prompt: str | None) -> TextSampler | None:
    if prompt is None:
        return None
    if task.tokenizer is None:
        raise UsageError(f"expected a text task for samples, got {cell.run.task.name}")
    return TextSampler(task.tokenizer, prompt, most=cell.run.sequence_length)


def _samples(task: Task, network: nn.Module) -> bytes | None:
    """Return the samples of a trained network as bytes; None if the task shows none."""
    if not isinstance(task, ShowsSamples):
        return None
    with torch.no_grad():
        found = task.samples(network, generate)
    return samples_to_bytes(found) if found else None
