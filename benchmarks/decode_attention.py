"""One query over a stored context: each kernel for decoding against SDPA, and against the machine.

16 query heads of 64 channels, batch 1, one tensor for key and value, as many KV heads as heads,
four or one. In the same rounds the machine reads the same bytes in a row and adds up products in
registers, so that a share of what is possible can be said, of the kernel called as these are: of
reading where each query head has keys of its own, of the products where heads share them. With
``--device cuda`` a batch of 16 on a GPU, for the kernel in Triton.
"""

import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from qkvary.nn.decoding import folded, native
from qkvary.nn.decoding.build import load
from qkvary.nn.decoding.decode import decode_attention
from qkvary.nn.decoding.problem import Decoding
from timing.interleaved import (
    Effort,
    Ratio,
    Timing,
    median_with_interval,
    print_case,
    read_options,
    take_turns,
)

NAME = "decode_attention"
FULL = Effort(rounds=15, turn_seconds=0.02)
ON_GPU = Effort(rounds=9, turn_seconds=0.01)
QUICK = Effort(rounds=2, turn_seconds=0.0)
HEADS, CHANNELS, CONTEXT, QUICK_CONTEXT = 16, 64, 32_768, 2048
GPU_BATCH = 16
"""So many requests that no cache of a GPU holds their keys."""
PROBES = (Path(__file__).parent / "timing" / "probes.cpp",)
AHEAD_BYTES = (0, 4096)
MULTIPLY_ADD_ROUNDS, LONG_ROUNDS = 10_000, 1_000_000
VECTORS = 12
"""Of the probe of multiply-adds."""


@dataclass(frozen=True, slots=True)
class Case:
    """One type and number of KV heads, and how fast it should be."""

    dtype: torch.dtype
    kv_heads: int
    torch_goal: float
    native_goal: float
    one_tensor_goal: float

    def __str__(self) -> str:
        kind = {HEADS: "MHA", 1: "MQA"}.get(self.kv_heads, f"GQA-{self.kv_heads}")
        return f"{str(self.dtype).removeprefix('torch.')} {kind}"


CASES = (
    Case(torch.float32, HEADS, 1.6, 2.6, 1.7),
    Case(torch.float32, 4, 2.5, 7.0, 1.0),
    Case(torch.float32, 1, 1.8, 4.5, 1.0),
    Case(torch.bfloat16, HEADS, 4.0, 14.0, 1.3),
    Case(torch.bfloat16, 4, 14.0, 27.0, 1.0),
    Case(torch.bfloat16, 1, 20.0, 28.0, 1.0),
)
LEAST_OF_READING, LEAST_OF_PRODUCTS, LEAST_OF_TWO_THREADS = 0.85, 0.6, 1.8


def make_calls(
    case: Case, context: int, device: str = "cpu", batch: int = 1
) -> dict[str, Callable[[], object]]:
    """Every kernel over the same tensors, and the probes."""
    query = torch.randn(batch, HEADS, 1, CHANNELS, device=device).to(case.dtype)
    key = torch.randn(batch, case.kv_heads, context, CHANNELS, device=device).to(case.dtype)
    value = key.clone()
    scale = CHANNELS**-0.5

    def decode(name: str, own: Tensor) -> Callable[[], object]:
        return lambda: decode_attention(query, key, own, scale=scale, kernel=name)

    calls: dict[str, Callable[[], object]] = {
        "SDPA of k and v": lambda: F.scaled_dot_product_attention(
            query, key, value, scale=scale, enable_gqa=case.kv_heads != HEADS
        )
    }
    calls |= {name: decode(name, key) for name in folded.FORMS}
    if device != "cpu":
        # Half of the keys, read and written, are as many bytes as all of them, read.
        half = key[: batch // 2]
        target = torch.empty_like(half)
        return calls | {
            "triton": decode("triton", key),
            "triton of k and v": decode("triton", value),
            "copy": lambda: target.copy_(half),
        }
    probes, library = load_probes(), native.library()
    if probes is None or library is None:
        return calls
    size = key.numel() * key.element_size() // 4
    for ahead in AHEAD_BYTES:
        calls[f"read {ahead}"] = lambda ahead=ahead: probes.probe_read(key.data_ptr(), size, ahead)
    return calls | {
        "native": decode("native", key),
        "native alone": call_alone(library, query, key, scale),
        "native of k and v": decode("native", value),
        "multiply-add": lambda: probes.probe_multiply_add(MULTIPLY_ADD_ROUNDS, 0.5),
    }


def call_alone(
    library: ctypes.CDLL, query: Tensor, key: Tensor, scale: float
) -> Callable[[], object]:
    """The kernel as the probes are called, without what Python and torch do around it.

    A pass over the keys leaves nothing of them in the processor's caches, so that coming back costs
    as much as a tenth of it. Layers that a step in one call goes through do not come back.
    """
    output = torch.empty_like(query)
    problem = Decoding(query=query, key=key, value=key, scale=scale)
    call, kept = native.describe(problem, query, output)

    def decode(_kept: object = (problem, output, kept)) -> None:
        if library.qkvary_decode(call):
            raise MemoryError("no room for the partial results of decoding attention")

    return decode


def load_probes() -> ctypes.CDLL | None:
    """The native probes, ``None`` where there is no compiler."""
    probes = load(PROBES)
    if probes is not None:
        probes.probe_read.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        probes.probe_multiply_add.argtypes = (ctypes.c_int64, ctypes.c_float)
        probes.probe_width.restype = ctypes.c_int64
    return probes


def share_of_machine(
    timing: Timing, case: Case, context: int, width: int
) -> tuple[str, Ratio, dict[str, float]]:
    """What the native kernel alone reaches of what it is held against, and the rates behind it."""
    reading = timing.fastest(*(f"read {ahead}" for ahead in AHEAD_BYTES))
    products = 2 * HEADS * CHANNELS * context
    probed = MULTIPLY_ADD_ROUNDS * VECTORS * width
    rounds = zip(
        *(timing.seconds[name] for name in (reading, "multiply-add", "native alone")), strict=True
    )
    shares = [(read / own, multiply * products / probed / own) for read, multiply, own in rounds]
    of_reading = median_with_interval([share[0] for share in shares])
    of_products = median_with_interval([share[1] for share in shares])
    seconds = timing.medians
    stored = case.kv_heads * CHANNELS * context * case.dtype.itemsize
    details = {
        "share_of_reading": round(of_reading.value, 3),
        "share_of_multiply_adds": round(of_products.value, 3),
        "read_gb_per_s": round(stored / seconds[reading] / 1e9, 1),
        "native_gb_per_s": round(stored / seconds["native alone"] / 1e9, 1),
        "multiply_add_gmac_per_s": round(probed / seconds["multiply-add"] / 1e9, 1),
        "native_gmac_per_s": round(products / seconds["native alone"] / 1e9, 1),
    }
    if case.kv_heads == HEADS:
        return "reading", of_reading, details
    return "multiply-adds", of_products, details


def measure(case: Case, effort: Effort, context: int) -> None:
    """Print all lines of a case."""
    calls = make_calls(case, context)
    timing = take_turns(calls, effort)
    said = {"context": context, "ns_per_token": per_token(timing, context)}
    form = timing.fastest(*folded.FORMS)
    sizes = f"{case}, {HEADS} heads of {CHANNELS}, context {context}"

    def show(what: str, ratio: Ratio, goal: float, **more: float) -> None:
        title = f"{what}: {sizes}"
        print_case(NAME, title, ratio, goal=goal, better="higher", timing=timing, **said, **more)

    show("SDPA over the best form in torch", timing.ratio("SDPA of k and v", form), case.torch_goal)
    probes = load_probes()
    if probes is None or "native" not in calls:
        return
    show("SDPA over native", timing.ratio("SDPA of k and v", "native"), case.native_goal)
    show("two tensors over one", timing.ratio("native of k and v", "native"), case.one_tensor_goal)
    what, share, rates = share_of_machine(timing, case, context, probes.probe_width())
    goal = LEAST_OF_READING if what == "reading" else LEAST_OF_PRODUCTS
    show(f"native, share of {what}", share, goal, **rates)


def per_token(timing: Timing, context: int) -> dict[str, float]:
    """Nanoseconds for each stored token."""
    skipped = ("multiply-add",)
    return {
        name: round(seconds / context * 1e9, 2)
        for name, seconds in timing.medians.items()
        if name not in skipped
    }


def measure_threads(effort: Effort, context: int) -> None:
    """What two threads gain by the clock on the wall, over what two gain that only add up products.

    Two processors of a virtual machine may be one of the machine's, by turns, so that nothing gains
    much there; that is seen in the same rounds.
    """
    library, probes = native.library(), load_probes()
    if library is None or probes is None:
        return
    query, key = torch.randn(1, HEADS, 1, CHANNELS), torch.randn(1, 1, context, CHANNELS)

    def with_threads(count: int) -> Callable[[], object]:
        torch.set_num_threads(count)
        call = call_alone(library, query, key, CHANNELS**-0.5)
        torch.set_num_threads(1)
        return call

    def add_up(_thread: int = 0) -> None:
        probes.probe_multiply_add(LONG_ROUNDS, 0.5)

    with ThreadPoolExecutor(2) as pool:
        turns = {
            "one thread": with_threads(1),
            "two threads": with_threads(2),
            "products of one": add_up,
            "products of two": lambda: list(pool.map(add_up, range(2))),
        }
        timing = take_turns(turns, effort, clock=perf_counter)
    one, two, alone, both = (timing.seconds[name] for name in turns)
    gains = [first / second for first, second in zip(one, two, strict=True)]
    best = [2 * first / second for first, second in zip(alone, both, strict=True)]
    print_case(
        NAME,
        f"native, gain of two threads over that of products alone: {CASES[2]}, context {context}",
        median_with_interval([gain / most for gain, most in zip(gains, best, strict=True)]),
        goal=LEAST_OF_TWO_THREADS / 2,
        better="higher",
        timing=timing,
        gain=round(median(gains), 3),
        gain_of_products=round(median(best), 3),
    )


def measure_on_gpu(case: Case, effort: Effort, context: int, device: str) -> None:
    """Print the lines of a case for the kernel in Triton, by the clock on the wall."""

    def clock() -> float:
        torch.cuda.synchronize()
        return perf_counter()

    timing = take_turns(make_calls(case, context, device, GPU_BATCH), effort, clock=clock)
    sizes = f"{case}, {GPU_BATCH} x {HEADS} heads of {CHANNELS}, context {context}"
    for what, over, goal in (
        ("SDPA over triton", "SDPA of k and v", 1.0),
        ("the best form in torch over triton", timing.fastest(*folded.FORMS), 1.0),
        ("two tensors over one", "triton of k and v", case.one_tensor_goal),
        ("triton, share of copying", "copy", LEAST_OF_READING),
    ):
        print_case(
            NAME,
            f"{what}: {sizes}",
            timing.ratio(over, "triton"),
            goal=goal,
            better="higher",
            timing=timing,
            device=torch.cuda.get_device_name(),
        )


def main() -> None:
    """Measure all cases."""
    options = read_options(devices=("cpu", "cuda"))
    effort, context = (QUICK, QUICK_CONTEXT) if options.quick else (FULL, CONTEXT)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.device != "cpu":
        if not torch.cuda.is_available():
            sys.exit(f"{NAME}: expected a GPU for --device {options.device}, got a machine without")
        # Of 16 bits first, as GPUs decode.
        for case in reversed(CASES):
            measure_on_gpu(case, QUICK if options.quick else ON_GPU, context, options.device)
        return
    for case in CASES:
        measure(case, effort, context)
    measure_threads(effort, context)


if __name__ == "__main__":
    with torch.no_grad():
        main()
