"""Checks that a run fits in memory, reuses freed memory, and reports when memory runs out."""

import ctypes
import platform

import torch

from qkvary.arch.models import as_model
from qkvary.costs.memory import TOKEN_BYTES
from qkvary.costs.parameters import model_parameters
from qkvary.costs.training import LOGIT_BYTES, STATE_BYTES, activation_bytes
from qkvary.storage.environment import require_memory
from qkvary.storage.errors import ResourceError
from qkvary.storage.posix import resource
from qkvary.training.config import RunConfig

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1
_MAPPED_BYTES = 2**25
"""Minimum size of the blocks that glibc maps separately. Mapping large blocks separately avoids
fragmentation. This is the largest value that glibc allows."""


def keep_freed_memory() -> bool:
    """Make this process reuse freed memory. Return whether this works (with glibc on Linux).

    Each training step allocates the same memory as the one before. By default glibc returns freed
    memory to the system. The system zeroes it page by page on the next allocation. That takes 2
    to 4 % of a step on a CPU. The setting lasts as long as the process and does not change any
    result.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES) and mallopt(_TRIM_THRESHOLD, _LARGEST))


def require_training_memory(run: RunConfig, *, processes: int = 1) -> None:
    """Check that the state, the batch and one micro-batch of a run on the CPU fit in memory."""
    if run.device != "cpu":
        return
    own, rows = _count_rows(run, processes)
    require_memory(
        training_bytes(run, processes=processes),
        f"training with {own:,} rows of {run.sequence_length:,} tokens, {rows:,} at a time, takes",
        "use a smaller --micro-batch-size, --batch-size, --context or network",
    )


def training_bytes(run: RunConfig, *, processes: int = 1) -> int:
    """Return the size in bytes of a run's state, batch and one micro-batch in each process."""
    model, tokens = as_model(run.network), run.sequence_length
    own, rows = _count_rows(run, processes)
    execution = run.training.execution
    precision = "mixed" if execution.precision == "bf16" else "fp32"
    state = STATE_BYTES * model_parameters(model).total // processes
    activations = activation_bytes(
        model, tokens=tokens, precision=precision, checkpointing=execution.recompute_blocks
    )
    # The loss is fused: not all logits exist at once.
    activations -= tokens * model.vocabulary * LOGIT_BYTES
    return state + own * tokens * TOKEN_BYTES + rows * activations


def out_of_memory(run: RunConfig, *, step: int, processes: int) -> ResourceError:
    """Return an error that states what a step needs and how to reduce it."""
    execution, (_, rows) = run.training.execution, _count_rows(run, processes)
    options = [f"--micro-batch-size {rows // 2}"] if rows > 1 else []
    if not execution.recompute_blocks:
        options.append("--recompute-blocks")
    less = "use a shorter context or a smaller network"
    if options:
        less = f"resume with `qkvary train ... --allow-change` and {' or '.join(options)}"
    if torch.device(run.device).type == "cuda":
        most = torch.cuda.max_memory_allocated(run.device)
    else:
        unit = 1 if platform.system() == "Darwin" else 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return ResourceError(
        f"out of memory at step {step:,}: a micro-batch of {rows:,} rows of "
        f"{run.sequence_length:,} tokens, {most / 2**30:,.1f} GiB in use; the last checkpoint is "
        f"kept; to use less memory, {less}"
    )


def _count_rows(run: RunConfig, processes: int) -> tuple[int, int]:
    own = -(-run.training.batch_size // processes)
    return own, min(run.training.execution.micro_batch_size or own, own)
