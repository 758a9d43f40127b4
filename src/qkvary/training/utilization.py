"""Measures device utilization: the FLOPs per second of training, relative to a large matmul.

The process that trains a network measures the matmul at the end of the run, because the speed of
a matmul depends on the machine and the load. The utilization is not part of the run's identity.
"""

from statistics import median
from time import perf_counter

import torch

from qkvary.arch.models import as_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.training import training_macs_per_token
from qkvary.nn.linear import linear
from qkvary.nn.threads import use_threads
from qkvary.training.config import RunConfig

SIDE_ON_CPU, SIDE_ON_GPU = 1024, 8192
REPEATS = 5


def measure_utilization(
    run: RunConfig, steps_per_second: float, *, processes: int = 1
) -> dict[str, float]:
    """Return ``utilization`` and ``product_flops_per_second``.

    ``product_flops_per_second`` is the speed at which all processes together could multiply
    matrices. ``utilization`` is the share of this speed that the training reaches. The result is
    empty if the speed cannot be measured.
    """
    if not isinstance(run.network, LanguageModelConfig) or not steps_per_second:
        return {}
    try:
        whole = processes * product_flops_per_second(run)
    except RuntimeError:
        # Out of memory, or a type that this device does not support.
        return {}
    share = training_flops_per_second(run, steps_per_second) / whole
    return {"utilization": share, "product_flops_per_second": whole}


def training_flops_per_second(run: RunConfig, steps_per_second: float) -> float:
    """Return the FLOPs per second of forward and backward passes.

    Excludes masked pairs and recomputation.
    """
    macs = training_macs_per_token(as_model(run.network), tokens=run.sequence_length)
    return 2.0 * macs * run.tokens_per_step * steps_per_second


def product_flops_per_second(run: RunConfig) -> float:
    """Return the FLOPs per second of multiplying large square matrices, executed like the run.

    The result is the median of five repeats after one warm-up.
    """
    device = torch.device(run.device)
    side = SIDE_ON_CPU if device.type == "cpu" else SIDE_ON_GPU
    dtype = torch.bfloat16 if run.training.execution.precision == "bf16" else torch.float32
    if run.dtype == "float64":
        dtype = torch.float64
    left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    seconds: list[float] = []
    with use_threads(run.threads), torch.inference_mode():
        for _ in range(1 + REPEATS):
            start = perf_counter()
            product = linear(left, right)
            # Synchronizes with the device.
            product[0, 0].item()
            seconds.append(perf_counter() - start)
    return 2.0 * side**3 / median(seconds[1:])
