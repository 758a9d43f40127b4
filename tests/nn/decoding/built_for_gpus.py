"""Build the kernels of Triton for GPUs, which takes none, and print what they are like as JSON.

Runs in a process of its own: other tests have Triton's interpreter.
"""

import json
import re
import sys
from typing import Any

import torch
from triton import OutOfResources
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from qkvary.nn.decoding.problem import Decoding
from qkvary.nn.decoding.triton_attention import attend_triton

SHARED_BYTES = {80: 99 << 10, 90: 227 << 10}
"""Shared memory of one program by compute capability: of the smallest GPU since 8.0, and of 9.0."""
WIDTH = 64


class AbsentDriver:
    """Says which GPU to build for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


def cases() -> dict[str, Decoding]:
    query = torch.zeros(2, 8, 1, WIDTH, dtype=torch.bfloat16)
    key = torch.zeros(2, 2, 700, WIDTH, dtype=torch.bfloat16)
    wide = key.float()
    valid = torch.ones(2, 700, dtype=torch.bool)
    widest = torch.zeros(1, 1, 700, 256)

    def ask(stored: torch.Tensor, value: torch.Tensor, **more: Any) -> Decoding:
        asked = more.pop("query", query)
        return Decoding(query=asked, key=stored, value=value, scale=0.1, **more)

    return {
        "one tensor": ask(key, key),
        "two tensors": ask(key, key.clone()),
        "padding": ask(key, key, valid=valid),
        "bias": ask(key, key, bias=torch.zeros(2, 8, 1, 700)),
        "float32": ask(wide, wide, query=query.float()),
        "many rows": ask(key, key, query=torch.zeros(2, 128, 1, WIDTH, dtype=torch.bfloat16)),
        "widest": ask(widest, widest.clone(), query=torch.zeros(1, 16, 1, 256)),
    }


def count_tiles_read(code: str) -> int:
    """Loads of whole tiles in the loop over the keys; a table's row is not one."""
    _, loop = code.split("scf.for", maxsplit=1)
    return len(re.findall(rf"tt\.load .*tensor<\d\d+x{WIDTH}x!tt\.ptr", loop))


def main() -> None:
    built: list[Any] = []
    asked: list[Any] = []

    def build(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        """Build, and refuse as a GPU does what it has no room for."""
        asked.append(kernel)
        kernel = run(kernel, *arguments, grid=grid, warmup=True, **options)
        room = SHARED_BYTES[driver.active.capability]
        if kernel.metadata.shared > room:
            raise OutOfResources(kernel.metadata.shared, room, "shared memory")
        built.append(kernel)

    run, JITFunction.run = JITFunction.run, build
    facts: list[dict[str, Any]] = []
    for number, (case, problem) in enumerate(cases().items()):
        # Each case for one of the GPUs, by turns.
        capability = [*SHARED_BYTES][number % 2]
        driver.set_active(AbsentDriver(capability))
        built.clear()
        asked.clear()
        attend_triton(problem)
        attending = built[0]
        facts.append(
            {
                "capability": capability,
                "case": case,
                "tiles_read": count_tiles_read(attending.asm["ttir"]),
                "halvings": len(asked) - len(built),
            }
        )
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
