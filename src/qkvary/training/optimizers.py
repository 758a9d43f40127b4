"""Adam with per-variant weight decay, and its state as tensors."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkvary.arch.networks import Network
from qkvary.training.config import OptimizerConfig, TrainingConfig
from qkvary.training.schedules import learning_rate, momentum

_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")


class _Adam(torch.optim.Adam):
    """Adam without torch's wrappers that exclude a method from compilation.

    They import the compiler, which takes as long as the rest of torch; no step is compiled here.
    """

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)


def weight_decays(model: nn.Module, network: Network, config: OptimizerConfig) -> dict[str, float]:
    """Return the weight decay of every parameter by name.

    A block's parameters decay by the variant of its layer (``OptimizerConfig.decay_of``). Others
    decay like the layers if these agree, and as configured otherwise.

    Source: the query-identity paper trains its networks with 2^-5 instead of 0.1.
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
    """Return the optimizer of a network, one group of parameters per weight decay."""
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
