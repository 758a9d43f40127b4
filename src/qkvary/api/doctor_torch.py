"""The devices and kernels of torch: the only part of ``doctor`` that needs torch."""

from typing import Any

import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.nn.kernels import choose_kernel

KERNEL_LENGTHS = (16, 64, 65, 256, 1024)


def describe_torch() -> dict[str, Any] | None:
    """Return devices, threads, instructions, and the attention kernel chosen at some lengths."""
    layer = AttentionConfig(d_model=64, num_heads=2)
    kernels = {
        f"{length} keys": choose_kernel(layer, length, training=True) for length in KERNEL_LENGTHS
    }
    return {
        "devices": _devices(),
        "threads_by_default": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": kernels,
    }


def _devices() -> list[str]:
    count = torch.cuda.device_count()
    accelerators = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(count)]
    return ["cpu", *accelerators, *(["mps"] if torch.backends.mps.is_available() else [])]
