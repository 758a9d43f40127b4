"""What is said when memory runs out, and on which devices networks can be trained at all."""

from __future__ import annotations

import platform
import resource

import torch

from qkvary.storage.errors import ResourceError, UsageError
from qkvary.training.config import RunConfig

_SAID = "DefaultCPUAllocator"
"""In what torch raises where the memory of a CPU runs out."""


def require_device(name: str) -> None:
    """Refuse a device that this machine does not have.

    Args:
        name: As torch spells it.

    Raises:
        UsageError: if it is not there; the message names those that are.
    """
    device, count = torch.device(name), torch.cuda.device_count()
    there = ["cpu", *(f"cuda:{number}" for number in range(count))]
    if torch.backends.mps.is_available():
        there.append("mps")
    wanted = f"cuda:{device.index or 0}" if device.type == "cuda" else device.type
    if wanted not in there:
        raise UsageError(
            f"expected a device of this machine, got {name!r}; choices: {', '.join(there)}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory left."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _SAID in str(error)
    )


def out_of_memory(run: RunConfig, *, step: int, processes: int) -> ResourceError:
    """What to raise instead: what a step takes, and what would take less.

    Args:
        run: What was trained.
        step: Steps that were made.
        processes: That share a step.
    """
    training = run.training
    execution, own = training.execution, -(-training.batch_size // processes)
    rows = min(execution.micro_batch_size or own, own)
    options = [f"--micro-batch-size {rows // 2}"] if rows > 1 else []
    if not execution.recompute_blocks:
        options.append("--recompute-blocks")
    less = "a shorter row or a smaller network"
    if options:
        less = f"`qkvary train ... --allow-change` and {' or '.join(options)}"
    return ResourceError(
        f"memory ran out at step {step:,}: {rows:,} rows of {run.task.sequence_length:,} tokens go "
        f"through the network at once, and {_peak(run.device)} were in use; what is done is kept, "
        f"and less is taken with {less}"
    )


def _peak(device: str) -> str:
    if torch.device(device).type == "cuda":
        most = torch.cuda.max_memory_allocated(device)
    else:
        unit = 1 if platform.system() == "Darwin" else 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f"{most / 2**30:,.1f} GiB"
