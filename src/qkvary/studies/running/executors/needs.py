"""What a run needs of a node of a cluster: cores, GPUs and memory."""

from qkvary.studies.running.executors.contract import Resources
from qkvary.studies.study import Cell
from qkvary.training.distribution import training_bytes

PROCESS_BYTES = 2**30
"""Memory of a process for torch and the data of its task, in addition to weights and
activations."""
DEVICE_BYTES = 2**32
"""Minimum main memory of a run on a device, for libraries and copies of its state for
checkpoints."""
MEMORY_UNIT = 2**28
"""Memory is rounded up to a multiple of this, so that similar variants can share a job."""


def needed_resources(cell: Cell, gpu_share: float) -> Resources:
    """Return what a run needs of a node."""
    run = cell.run
    on_cpu = run.device == "cpu"
    memory = max(PROCESS_BYTES + training_bytes(run), 0 if on_cpu else DEVICE_BYTES)
    return Resources(
        cores=run.threads,
        gpus=0.0 if on_cpu else gpu_share,
        memory_bytes=-(-memory // MEMORY_UNIT) * MEMORY_UNIT,
    )
