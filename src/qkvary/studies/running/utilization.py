"""How much of a device training uses: its arithmetic against that of one large product.

Measured when a run has ended, by the process that trained it: on another machine, or another day,
the product says nothing about the run. It is no part of what the run is.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from qkvary.arch.models import as_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.training import training_macs_per_token
from qkvary.nn.linear import linear
from qkvary.training.config import RunConfig

SIDE_ON_CPU, SIDE_ELSEWHERE = 1024, 8192
TURNS = 5


def measure_utilization(
    run: RunConfig, steps_per_second: float, *, processes: int = 1
) -> dict[str, float]:
    """What the timing of a record says about it; nothing where it cannot be measured.

    Args:
        run: What was trained; only language models are large enough to be worth it.
        steps_per_second: How fast.
        processes: How many trained it, on as many devices.

    Returns:
        ``utilization``, a share, and ``product_flops_per_second``, which it is a share of: the
        product's, of all processes together. Or nothing.
    """
    if not isinstance(run.network, LanguageModelConfig) or not steps_per_second:
        return {}
    try:
        whole = processes * product_flops_per_second(run)
    except RuntimeError:
        # No memory for it, or a type that this device does not multiply.
        return {}
    share = training_flops_per_second(run, steps_per_second) / whole
    return {"utilization": share, "product_flops_per_second": whole}


def training_flops_per_second(run: RunConfig, steps_per_second: float) -> float:
    """Operations of forward and backward passes a second, two for each multiply-accumulate.

    Counts what the network asks for: neither hidden pairs nor what is computed again.
    """
    tokens = run.task.sequence_length
    macs = training_macs_per_token(as_model(run.network), tokens=tokens)
    return 2.0 * macs * tokens * run.training.batch_size * steps_per_second


def product_flops_per_second(run: RunConfig) -> float:
    """Operations a second of a product of large square matrices, as a run would compute it.

    Measured now: the median of five turns behind one that is not counted.
    """
    device = torch.device(run.device)
    side = SIDE_ON_CPU if device.type == "cpu" else SIDE_ELSEWHERE
    dtype = torch.bfloat16 if run.training.execution.precision == "bf16" else torch.float32
    if run.dtype == "float64":
        dtype = torch.float64
    threads = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    try:
        left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
        seconds: list[float] = []
        with torch.inference_mode():
            for _ in range(1 + TURNS):
                start = perf_counter()
                product = linear(left, right)
                # Waits for a device that works on its own.
                product[0, 0].item()
                seconds.append(perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return 2.0 * side**3 / median(seconds[1:])
