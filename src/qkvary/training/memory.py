"""Checks of devices, and error messages for running out of memory."""

from __future__ import annotations

import platform
import resource

import torch

from qkvary.storage.errors import ResourceError, UsageError
from qkvary.training.config import RunConfig

_CPU_ALLOCATOR = "DefaultCPUAllocator"
"""Occurs in torch's error when CPU memory runs out."""


def require_device(name: str) -> None:
    """Check that this machine has a device.

    Args:
        name: The device, as torch names it.

    Raises:
        UsageError: if it does not exist; the message lists the choices.
    """
    device, count = torch.device(name), torch.cuda.device_count()
    choices = ["cpu", *(f"cuda:{number}" for number in range(count))]
    if torch.backends.mps.is_available():
        choices.append("mps")
    wanted = f"cuda:{device.index or 0}" if device.type == "cuda" else device.type
    if wanted not in choices:
        raise UsageError(
            f"expected a device of this machine, got {name!r}; choices: {', '.join(choices)}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)
    )


def out_of_memory(run: RunConfig, *, step: int, processes: int) -> ResourceError:
    """Return an error that says what a step needs and how to reduce it.

    Args:
        run: The run.
        step: Completed steps.
        processes: Number of processes.
    """
    training = run.training
    execution, own = training.execution, -(-training.batch_size // processes)
    rows = min(execution.micro_batch_size or own, own)
    options = [f"--micro-batch-size {rows // 2}"] if rows > 1 else []
    if not execution.recompute_blocks:
        options.append("--recompute-blocks")
    less = "use a shorter context or a smaller network"
    if options:
        less = f"resume with `qkvary train ... --allow-change` and {' or '.join(options)}"
    return ResourceError(
        f"out of memory at step {step:,}: a micro-batch of {rows:,} rows of "
        f"{run.task.sequence_length:,} tokens, {_peak(run.device)} in use; the last checkpoint is "
        f"kept; to use less memory, {less}"
    )


def _peak(device: str) -> str:
    if torch.device(device).type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
    else:
        unit = 1 if platform.system() == "Darwin" else 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f"{most / 2**30:,.1f} GiB"
