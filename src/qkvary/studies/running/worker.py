"""The worker process, which trains: ``python -m qkvary.studies.running.worker``."""

import functools
import sys
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from qkvary.checkpoints.models import save_model
from qkvary.inference.decoding import generate
from qkvary.nn.kernels import choose_kernel
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import now
from qkvary.storage.errors import DamagedError
from qkvary.studies.running.attention_maps import to_bytes
from qkvary.studies.running.recording import make_record
from qkvary.studies.running.samples import samples_to_bytes
from qkvary.studies.running.store import Claim, network_name
from qkvary.studies.running.utilization import measure_utilization
from qkvary.studies.running.work_loop import RunContext, RunResult, serve
from qkvary.studies.study import Cell
from qkvary.tasks.catalog import load_task
from qkvary.tasks.config import TaskConfig
from qkvary.tasks.contract import ShowsSamples, Task
from qkvary.training.allocator import keep_freed_memory
from qkvary.training.config import ExecutionSettings
from qkvary.training.distribution import Distribution
from qkvary.training.loop import train


@functools.lru_cache(maxsize=8)
def load_cell_task(config: TaskConfig) -> Task:
    """Return the task of a run, cached for all runs of this process.

    Raises:
        DamagedError: if its data is not what the configuration says.
    """
    task = load_task(config)
    if task.data_fingerprint != config.data_fingerprint:
        raise DamagedError(
            f"expected data of task {config.name} with fingerprint {config.data_fingerprint}, got "
            f"{task.data_fingerprint}"
        )
    return task


def _samples(task: Task, network: nn.Module) -> bytes | None:
    """Return the samples of a trained network as bytes; None where the task shows none."""
    if not isinstance(task, ShowsSamples):
        return None
    with torch.no_grad():
        found = task.samples(network, generate)
    return samples_to_bytes(found) if found else None


def _kernel(cell: Cell) -> str:
    """Return the kernels of the softmax core that training uses."""
    keys = cell.run.sequence_length
    layers = cell.run.network.layers
    return " and ".join(sorted({choose_kernel(layer, keys, training=True) for layer in layers}))


def train_cell(
    cell: Cell,
    claim: Claim,
    context: RunContext,
    distribution: Distribution | None = None,
    execution: ExecutionSettings | None = None,
) -> RunResult | None:
    """Train the network of a run in the claimed folder; return None if it was stopped."""
    started, task = now(), load_cell_task(cell.run.task)

    def keep(step: int, network: nn.Module) -> None:
        path = claim.directory / network_name(step)
        save_model(path, cast("LanguageModel", network), task.tokenizer)

    outcome = train(
        cell.run,
        task,
        claim.directory,
        stop=context.stop,
        callbacks=replace(
            context.callbacks,
            network_steps=frozenset(step for step in cell.kept_networks if step is not None),
            on_network=keep,
        ),
        distribution=distribution,
        checkpoint_seconds=context.checkpoint_seconds,
        keep=context.keep,
        execution=execution,
        generate=generate,
    )
    computed = cell.run if execution is None else cell.run.with_execution(execution)
    changed = cell.run.execution.differences(computed.execution)
    if outcome.status == "stopped":
        return None
    if None in cell.kept_networks and outcome.status == "done":
        network = cast("LanguageModel", outcome.network)
        save_model(claim.directory / network_name(), network, task.tokenizer)
    processes = 1 if distribution is None else distribution.size
    speed = outcome.timing["steps_per_second"] if outcome.status == "done" else 0.0
    record = make_record(
        cell,
        status=outcome.status,
        started=started,
        message=outcome.message,
        metrics=outcome.metrics,
        timing={
            **outcome.timing,
            **measure_utilization(computed, speed, processes=processes),
        },
        environment={
            "torch": str(torch.__version__),
            "device": computed.device,
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "kernel": _kernel(cell),
            "processes": processes,
            **({"changed": changed} if changed else {}),
        },
        state_sha256=outcome.state_sha256,
    )
    is_writer = outcome.status == "done" and (distribution is None or distribution.rank == 0)
    return RunResult(
        record=record,
        attention=None if outcome.attention is None else to_bytes(outcome.attention),
        samples=_samples(task, outcome.network) if is_writer else None,
    )


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(serve(train_cell))
