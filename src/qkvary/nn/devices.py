"""Tells which devices torch can use on this machine."""

import torch

from qkvary.storage.environment import check_device
from qkvary.storage.errors import UsageError


def require_device(name: str) -> None:
    """Check that the device ``name`` exists on this machine."""
    check_device(name)
    device, count = torch.device(name), torch.cuda.device_count()
    choices = ["cpu", *map("cuda:{}".format, range(count))]
    if torch.backends.mps.is_available():
        choices.append("mps")
    wanted = f"cuda:{device.index or 0}" if device.type == "cuda" else device.type
    if wanted not in choices:
        raise UsageError(
            f"expected a device of this machine, got {name!r}; choices: {', '.join(choices)}"
        )
