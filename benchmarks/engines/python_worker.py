"""One answer of this program or of transformers with the same weights: JSON in, JSON out."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.huggingface.stock import export_stock
from qkvary.inference.decoding import make_cache
from qkvary.inference.stepping import Stepper
from qkvary.nn.language_model import LanguageModel

STATUS = Path("/proc/self/status")
Step = Callable[[Tensor], Tensor]
"""Takes a token and returns the next logits."""


def peak_bytes() -> int:
    """The high-water mark of resident memory."""
    line = next(one for one in STATUS.read_text("utf-8").splitlines() if one.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


class Ours:
    """This program, with its default cache and kernel."""

    def __init__(self, network: LanguageModel, tokens: int) -> None:
        self.network = network
        self.cache = make_cache(network, tokens)

    def read(self, prompt: Tensor) -> Tensor:
        """Return the logits after every token of the prompt."""
        return self.network(prompt[None], cache=self.cache)[0]

    def stepper(self) -> Step:
        """Return what takes a token."""
        step = Stepper(self.network, self.cache)
        return lambda token: step(token)[0]

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated."""
        return self.cache.nbytes


class Stock:
    """Transformers: the architecture that fits, with its dynamic cache."""

    def __init__(self, network: LanguageModel, _tokens: int) -> None:
        self.model: Any = export_stock(network).build()
        self.cache: Any = None

    def read(self, prompt: Tensor) -> Tensor:
        """Return the logits after every token of the prompt."""
        found = self.model(prompt[None], use_cache=True)
        self.cache = found.past_key_values
        return found.logits[0]

    def stepper(self) -> Step:
        """Return what takes a token."""

        def step(token: Tensor) -> Tensor:
            return self.model(token[None], past_key_values=self.cache).logits[0, -1]

        return step

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers)


ENGINES = {"qkvary": Ours, "transformers": Stock}


@torch.inference_mode()
def answer(call: dict[str, Any]) -> dict[str, Any]:
    """Read the prompt, then decode greedily, one token at a time."""
    torch.set_num_threads(call["threads"])
    dtype = "bfloat16" if call["weights"] == "bf16" else "float32"
    codes = "int8" if call["weights"] == "q8_0" else None
    network = load_checkpoint(call["path"]).to("cpu", dtype, codes).network
    prompt = torch.tensor(call["prompt"])
    engine = ENGINES[call["engine"]](network, len(prompt) + call["new"] + 8)
    start = time.process_time()
    logits = engine.read(prompt)
    prefill = time.process_time() - start
    step, last = engine.stepper(), logits[-1]
    tokens: list[int] = []
    seconds: list[float] = []
    for _ in range(call["new"]):
        token = last.argmax()[None]
        tokens.append(int(token))
        start = time.process_time()
        last = step(token)
        seconds.append(time.process_time() - start)
    return {
        "logits": logits.tolist() if call["logits"] else [],
        "tokens": tokens,
        "prefill_seconds": prefill,
        "token_seconds": statistics.median(seconds) if seconds else None,
        "cache_bytes": engine.cache_bytes,
        "peak_bytes": peak_bytes(),
    }


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
