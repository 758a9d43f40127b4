"""One answer of stock llama.cpp, in the environment that has it: JSON in, JSON out.

Imports nothing of this project. What the engine says about its cache stands in its log, on stderr.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np

FLOAT32, BFLOAT16 = 0, 30
"""llama.cpp's numbers of types."""
STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """The high-water mark of resident memory."""
    line = next(one for one in STATUS.read_text("utf-8").splitlines() if one.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def answer(call: dict) -> dict:
    """Read the prompt, then decode greedily, one token at a time."""
    prompt, new = call["prompt"], call["new"]
    cache = BFLOAT16 if call["weights"] == "bf16" else FLOAT32
    model = llama_cpp.Llama(
        call["path"],
        n_ctx=len(prompt) + new + 8,
        n_threads=call["threads"],
        n_threads_batch=call["threads"],
        logits_all=call["logits"],
        type_k=cache,
        type_v=cache,
        flash_attn=False,
        verbose=True,
    )
    texts = [model.tokenize(text.encode(), add_bos=True, special=False) for text in call["texts"]]
    clock = time.perf_counter if call["wall"] else time.process_time
    start = clock()
    model.eval(prompt)
    prefill = clock() - start
    logits = model.scores[: len(prompt)].tolist() if call["logits"] else []
    tokens, seconds = [], []
    for _ in range(new):
        last = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        tokens.append(int(np.ctypeslib.as_array(last, (model.n_vocab(),)).argmax()))
        start = clock()
        model.eval(tokens[-1:])
        seconds.append(clock() - start)
    return {
        "texts": texts,
        "logits": logits,
        "tokens": tokens,
        "prefill_seconds": prefill,
        "token_seconds": statistics.median(seconds) if seconds else None,
        "peak_bytes": peak_bytes(),
    }


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
