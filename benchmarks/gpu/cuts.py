"""Attention of one query in bfloat16 by how its kernel is cut, and by torch: bytes a second.

Calls are captured in a graph, as decoding runs them, so that launching them takes no time. Keys and
values are one tensor; a mask hides nothing. Each line has the bytes of the keys over the time of a
call: how near that is to the rate of a copy says how near the kernel is to the memory's limit.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from records import Records

from qkvary.nn.decoding import triton_attention
from qkvary.nn.decoding.folded import FORMS
from qkvary.nn.decoding.problem import Decoding

PART = "cuts"
CASES = {
    "32 KV heads of 64, batch 8, 8k": (8, 32, 32, 8_192, 64),
    "32 KV heads of 64, batch 1, 32k": (1, 32, 32, 32_768, 64),
    "8 KV heads of 64, batch 32, 8k": (32, 32, 8, 8_192, 64),
}
"""Batch, heads, KV heads, keys, channels."""
CUTS = ((14, 4, 3), (15, 4, 3), (15, 8, 3), (14, 2, 4), (15, 4, 2))
"""Bytes of a tile as a power of two, warps, tiles on their way."""
PROGRAMS = (2, 4, 8)
CALLS, REPLAYS = 4, 7


def main() -> None:
    """Measure what is not in the records yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="one small case")
    options = parser.parse_args()
    records, device = Records(options.out), torch.device(options.device)
    cases = {"quick": (1, 4, 2, 64, 16)} if options.quick else CASES
    with torch.inference_mode():
        for name, (batch, heads, kv_heads, keys, dim) in cases.items():
            query = torch.randn(batch, heads, 1, dim, device=device, dtype=torch.bfloat16)
            key = torch.randn(batch, kv_heads, keys, dim, device=device, dtype=torch.bfloat16)
            hidden = torch.ones(batch, keys, dtype=torch.bool, device=device)
            for valid in (None, hidden):
                problem = Decoding(query=query, key=key, value=key, scale=dim**-0.5, valid=valid)
                for form in forms(problem):
                    asked = {"case": name, "form": form[0], "mask": valid is not None}
                    if not records.has(PART, **asked):
                        rate = 2 * key.numel() / measure(form[1], problem, device)
                        records.add(PART, **asked, bytes_per_second=rate)


def forms(problem: Decoding) -> list[tuple[str, Callable[[Decoding], object]]]:
    """Return what computes a call: torch, the kernel as it is, and as it might be cut."""
    found: list[tuple[str, Callable[[Decoding], object]]] = [*FORMS.items()]
    if not triton_attention.supports(problem) or triton_attention.is_interpreted():
        return found
    found.append(("triton", triton_attention.attend_triton))
    if problem.valid is not None:
        for bits, warps, stages in CUTS:
            for programs in PROGRAMS:
                name = f"triton, tiles of {1 << bits} B, {warps} warps, {stages} tiles, {programs}"
                found.append((name, with_cut(bits, warps, stages, programs)))
    return found


def with_cut(bits: int, warps: int, stages: int, programs: int) -> Callable[[Decoding], object]:
    """Return the kernel with other sizes."""

    def attend(problem: Decoding) -> object:
        names = ("TILE_BYTES", "WARPS", "STAGES", "PROGRAMS")
        before = [getattr(triton_attention, name) for name in names]
        for name, value in zip(names, (1 << bits, warps, stages, programs), strict=True):
            setattr(triton_attention, name, value)
        try:
            return triton_attention.attend_triton(problem)
        finally:
            for name, value in zip(names, before, strict=True):
                setattr(triton_attention, name, value)

    return attend


def measure(call: Callable[[Decoding], object], problem: Decoding, device: torch.device) -> float:
    """Return the seconds of a call, the median over replays."""
    call(problem)
    if device.type != "cuda":
        start = time.perf_counter()
        call(problem)
        return time.perf_counter() - start
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call(problem)
    seconds: list[float] = []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / CALLS)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
