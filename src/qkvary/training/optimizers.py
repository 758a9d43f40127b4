"""Adam with per-variant weight decay, and its learning rate and momentum at each step.

Learning rate and momentum are pure functions of the step.
"""

import inspect
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.training.config import ONE_CYCLE_DIP, OptimizerConfig, ScheduleConfig, TrainingConfig

_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")
ONE_CYCLE_RISE, ONE_CYCLE_START, ONE_CYCLE_END = 0.25, 1 / 25, 1e-5
"""For ``one_cycle``: share of steps before the peak; first and last rate relative to the peak."""


class _Adam(torch.optim.Adam):
    """Adam that does not import torch's compiler.

    Torch wraps some methods to exclude them from compilation. The wrappers import the compiler,
    which takes as long as the rest of torch. Here no step is compiled, so they are removed.
    """

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)


def weight_decays(model: nn.Module, network: Network, config: OptimizerConfig) -> dict[str, float]:
    """Return the weight decay of every parameter by name.

    The variant of a layer determines the decay of the layer's block (``OptimizerConfig.decay_of``).
    If all blocks have the same decay, other parameters get it too. Otherwise, they get the
    configured decay. If only matrices decay, vectors get 0.

    Source: the query-identity paper trains its networks with a weight decay of 2^-5 instead of 0.1.
    """
    by_layer = [config.decay_of(layer.variant) for layer in network.layers]
    outside = by_layer[0] if len(set(by_layer)) == 1 else config.weight_decay
    decays: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        match = _BLOCK.search(name)
        decay = by_layer[int(match[1])] if match else outside
        exempt = config.decay == "matrices" and parameter.ndim < 2
        decays[name] = 0.0 if exempt else decay
    return decays


def make_optimizer(model: nn.Module, network: Network, config: OptimizerConfig) -> torch.optim.Adam:
    """Return the optimizer of a network, with one parameter group per weight decay."""
    groups: dict[float, list[nn.Parameter]] = {}
    decays = weight_decays(model, network, config)
    for name, parameter in model.named_parameters():
        groups.setdefault(decays[name], []).append(parameter)
    return _Adam(
        [{"params": members, "weight_decay": decay} for decay, members in groups.items()],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=True,
        decoupled_weight_decay=config.name == "adamw",
    )


def set_schedule(optimizer: torch.optim.Optimizer, training: TrainingConfig, step: int) -> None:
    """Set the learning rate and the first beta of one step, counted from 0."""
    chosen, steps = training.optimizer, training.steps
    rate = learning_rate(training.schedule, peak=chosen.learning_rate, step=step, steps=steps)
    beta = momentum(training.schedule, highest=chosen.betas[0], step=step, steps=steps)
    for group in optimizer.param_groups:
        group["lr"] = rate
        group["betas"] = (beta, chosen.betas[1])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state; keys are ``<parameter number>.<name>``."""
    state: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": tensor
        for number, tensors in state.items()
        for name, tensor in tensors.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the state that ``optimizer_tensors`` returned."""
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def learning_rate(schedule: ScheduleConfig, *, peak: float, step: int, steps: int) -> float:
    """Return the learning rate of one step, counted from 0, of a run of ``steps`` steps.

    ``cosine_warmup`` starts at 0, and would reach 0 again after the last step. ``one_cycle`` would
    reach its end after the last step. ``inverse_sqrt`` is the schedule of Vaswani et al. 2017: with
    s = step + 1, d_model^-0.5 min(s^-0.5, s warmup^-1.5), whose peak is (d_model warmup)^-0.5.

    Source: ``cosine_warmup`` from the public code of the key-value transformer (Borji 2023),
    ``CosineWarmupScheduler``; ``cosine`` from the public code of Kayyam et al. 2026; ``one_cycle``
    is ``fit_one_cycle`` of fastai (Smith 2018), as in the number experiment of Borji 2023.
    """
    warmup, floor = schedule.warmup_steps, schedule.floor
    match schedule.name:
        case "constant":
            factor = 1.0
        case "cosine_warmup":
            warm = min(1.0, step / warmup) if warmup else 1.0
            factor = 0.5 * (1.0 + math.cos(math.pi * step / steps)) * warm
        case "cosine" if step < warmup:
            factor = (step + 1) / warmup
        case "cosine":
            end = steps if schedule.decay_steps is None else schedule.decay_steps
            done = min(1.0, (step - warmup) / max(1, end - warmup))
            factor = floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
        case "inverse_sqrt":
            factor = min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))
        case "multistep":
            factor = schedule.gamma ** bisect_right(schedule.milestones, step)
        case "one_cycle":
            factor = _cycle(step / steps, ONE_CYCLE_START, 1.0, ONE_CYCLE_END)
    return peak * factor


def momentum(schedule: ScheduleConfig, *, highest: float, step: int, steps: int) -> float:
    """Return the first beta. ``one_cycle`` lowers it by 0.1 up to the peak of the learning rate."""
    if schedule.name != "one_cycle":
        return highest
    return _cycle(step / steps, highest, highest - ONE_CYCLE_DIP, highest)


def _cycle(done: float, start: float, middle: float, end: float) -> float:
    """Return the value of the schedule when the share ``done`` of all steps is over.

    The value follows half a cosine from ``start`` to ``middle``, then another half from ``middle``
    to ``end``.
    """
    share, low, high = done / ONE_CYCLE_RISE, start, middle
    if done >= ONE_CYCLE_RISE:
        share, low, high = (done - ONE_CYCLE_RISE) / (1.0 - ONE_CYCLE_RISE), middle, end
    return low + (high - low) * 0.5 * (1.0 - math.cos(math.pi * share))
