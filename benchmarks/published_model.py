"""Evaluation, prefill and decoding at the sizes of published models, next to two peers.

Random weights in the sizes of SmolLM2-135M and Qwen2.5-0.5B, batch 1, in float32 and bfloat16, with
one thread and with two. Transformers computes with the same weights, as Llama with SDPA, and so
does llama.cpp where ``--llama-python`` names a Python that has it. Evaluation is the loss of every
token of 512, prefill the cache of 512 tokens and the last logits, decoding 8 tokens after them. Two
threads are timed by the clock on the wall, one by CPU time.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.gguf.headers import TensorType
from qkvary.checkpoints.models import LoadedModel
from qkvary.inference.decoding import make_cache, prefill
from qkvary.inference.evaluation.scoring import score_windows
from qkvary.inference.evaluation.windows import cut
from qkvary.inference.stepping import Stepper
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.packages import is_installed
from timing.interleaved import Effort, Timing, print_case, read_options, take_turns
from timing.stock_generation import StockModel

NAME = "published_model"
FULL = Effort(rounds=7, turn_seconds=0.0)
QUICK = Effort(rounds=1, turn_seconds=0.0)
TOKENS, QUICK_TOKENS, NEW = 512, 24, 8
NOT_SLOWER = 1.0
DTYPES = (torch.float32, torch.bfloat16)
THREADS = (1, 2)
CLOCKS = {1: time.process_time, 2: time.perf_counter}
WORKER = Path(__file__).parent / "engines" / "llama_cpp_worker.py"
GGUF_TYPES: dict[torch.dtype, TensorType] = {torch.float32: "f32", torch.bfloat16: "bf16"}


class Size(NamedTuple):
    """The widths of a network."""

    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    d_ff: int
    vocabulary: int


SIZES = {
    "135M": Size(576, 30, 9, 3, 1536, 49_152),
    "0.5B": Size(896, 24, 14, 2, 4864, 151_936),
}
QUICK_SIZES = {"quick": Size(64, 2, 4, 2, 96, 131)}


def make_network(size: Size) -> LanguageModel:
    """Return a network with random weights, as Llama has it."""
    attention = AttentionConfig(
        d_model=size.d_model,
        num_heads=size.num_heads,
        variant=parse_variant(f"GQA-{size.num_kv_heads}@rotary"),
        causal=True,
        bias=False,
        out_bias=False,
        position=PositionConfig(rotary_fraction=1.0),
    )
    config = LanguageModelConfig(
        attention=attention,
        block=BlockConfig(d_ff=size.d_ff, activation="swiglu", norm="rmsnorm", bias=False),
        num_layers=size.num_layers,
        vocabulary=size.vocabulary,
        max_tokens=TOKENS + NEW,
        positions="none",
        tied_head=True,
    )
    return LanguageModel(config, seed=0).eval()


def evaluations(
    network: LanguageModel, stock: Any, tokens: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """Return the loss of every token, by both."""
    text, most = tokens[0].numpy(), tokens.shape[1] - 1
    windows = cut(np.array([[0, most + 1]]), context=most, stride=most)

    def by_transformers() -> object:
        logits = stock(tokens[:, :-1], use_cache=False).logits[0].float()
        return F.cross_entropy(logits, tokens[0, 1:], reduction="none").numpy()

    return {
        "ours": lambda: score_windows(network, text, windows, batch_size=1),
        "transformers": by_transformers,
    }


def prefills(
    network: LanguageModel, stock: Any, tokens: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """Return the cache of a prompt and its last logits, by both."""
    return {
        "ours": lambda: prefill(network, tokens, cache=make_cache(network, TOKENS + NEW)),
        "transformers": lambda: stock(tokens, use_cache=True, logits_to_keep=1).logits,
    }


def decodings(
    network: LanguageModel, stock: Any, tokens: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """Return a few tokens after a prompt, which both have read before, and take back."""
    theirs = stock(tokens, use_cache=True, logits_to_keep=1).past_key_values
    one = tokens[:, 0]

    def by_transformers() -> None:
        for _ in range(NEW):
            stock(one[:, None], past_key_values=theirs, use_cache=True)
        theirs.crop(-NEW)

    return {"ours": ours(network, tokens), "transformers": by_transformers}


def ours(network: LanguageModel, tokens: torch.Tensor) -> Callable[[], None]:
    """Return a few tokens after a prompt by our step, which takes them back."""
    step, cache = stepper(network, tokens)

    def decode() -> None:
        for _ in range(NEW):
            step(tokens[:, 0])
        cache.crop(tokens.shape[1])

    return decode


def stepper(network: LanguageModel, tokens: torch.Tensor) -> tuple[Stepper, KVCache]:
    """Return our step after a prompt, and its cache."""
    cache = make_cache(network, TOKENS + NEW)
    prefill(network, tokens, cache=cache)
    return Stepper(network, cache), cache


KINDS = {"evaluation": evaluations, "prefill": prefills, "decoding": decodings}


class LlamaCpp:
    """Decoding by llama.cpp, each time in a fresh process."""

    def __init__(self, python: Path, network: LanguageModel, dtype: torch.dtype) -> None:
        """Export a network of float32.

        Args:
            python: A Python that has ``llama_cpp``.
            network: The network.
            dtype: Of the matrices and of the cache.
        """
        self.python, self.weights = python, GGUF_TYPES[dtype]
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "network.gguf"
        export_gguf(LoadedModel(network, None), self.path, self.weights)

    def seconds(self, tokens: torch.Tensor, threads: int) -> float:
        """Return the time of a token after a prompt, by the clock for so many threads."""
        call = {
            "path": str(self.path),
            "prompt": tokens[0].tolist(),
            "new": NEW,
            "texts": [],
            "logits": False,
            "threads": threads,
            "wall": threads > 1,
            "weights": self.weights,
        }
        done = subprocess.run(
            [str(self.python), str(WORKER)],
            input=json.dumps(call),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"llama.cpp ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])["token_seconds"]

    def decode(
        self, network: LanguageModel, tokens: torch.Tensor, threads: int, effort: Effort
    ) -> Timing:
        """Return the median time of a token of both, in turn."""
        step, cache = stepper(network, tokens)
        clock = CLOCKS[threads]
        seconds: dict[str, list[float]] = {"ours": [], "llama.cpp": []}
        for _ in range(effort.rounds):
            seconds["llama.cpp"].append(self.seconds(tokens, threads))
            # As llama.cpp's: the first token after the other program's turn counts as any other.
            times: list[float] = []
            for _ in range(NEW):
                start = clock()
                step(tokens[:, 0])
                times.append(clock() - start)
            cache.crop(tokens.shape[1])
            seconds["ours"].append(statistics.median(times))
        return Timing(seconds)


def measure(
    name: str, size: Size, dtype: torch.dtype, tokens: int, effort: Effort, python: Path | None
) -> None:
    """Print the lines of a size and type, with one thread and with two."""
    network = make_network(size)
    stock = StockModel(network).model.to(dtype).eval()
    peer = None if python is None else LlamaCpp(python, network, dtype)
    network = network.to(dtype)
    drawn = torch.randint(size.vocabulary, (1, tokens + 1))
    for threads in THREADS:
        torch.set_num_threads(threads)

        def show(kind: str, other: str, timing: Timing, threads: int = threads) -> None:
            kept = str(dtype).removeprefix("torch.")
            print_case(
                NAME,
                f"{kind}, {other} over ours: {name}, {kept}, {tokens} tokens, threads {threads}",
                timing.ratio(other, "ours"),
                goal=NOT_SLOWER,
                better="higher",
                timing=timing,
            )

        for kind, make in KINDS.items():
            given = drawn if kind == "evaluation" else drawn[:, :-1]
            calls = make(network, stock, given)
            show(kind, "transformers", take_turns(calls, effort, clock=CLOCKS[threads]))
        if peer is not None:
            show("decoding", "llama.cpp", peer.decode(network, drawn[:, :-1], threads, effort))
    torch.set_num_threads(1)


def find_llama_cpp(python: Path | None) -> Path | None:
    """Return the Python that has llama.cpp; where there is none, say so in one line."""
    if python is not None:
        command = [str(python), "-c", "import llama_cpp"]
        if python.exists():
            found = subprocess.run(command, capture_output=True, check=False)
            if not found.returncode:
                return python
    missing = "no --llama-python was given" if python is None else f"{python} has no llama_cpp"
    print(f"{NAME}: llama.cpp is left out: {missing}", file=sys.stderr)
    return None


def main() -> None:
    """Measure all sizes and types."""
    options = read_options(paths={"--llama-python": "a Python that has llama-cpp-python"})
    effort = QUICK if options.quick else FULL
    python = find_llama_cpp(options.llama_python)
    torch.manual_seed(0)
    sizes, tokens = (QUICK_SIZES, QUICK_TOKENS) if options.quick else (SIZES, TOKENS)
    with torch.inference_mode():
        for name, size in sizes.items():
            for dtype in DTYPES:
                measure(name, size, dtype, tokens, effort, python)


if __name__ == "__main__":
    if not is_installed("transformers"):
        sys.exit("ModuleNotFoundError: transformers is not installed: run make setup")
    main()
