"""How much of a device training uses: its arithmetic against that of one large product."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from qkvary.arch.models import as_model
from qkvary.costs.training import training_macs_per_token
from qkvary.nn.products import linear
from qkvary.training.config import RunConfig

SIDE_ON_CPU, SIDE_ELSEWHERE = 1024, 8192
TURNS = 5


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
