"""Engines that serve over HTTP: equal tokens, the cache that they log, users in a fixed cache.

    python benchmarks/engines/serving.py --llama-server build/llama-server --vllm env/bin/vllm
    python benchmarks/engines/serving.py --llama-server build/llama-server --quick

Random weights as QKV, as GQA-2 and with one tensor for key and value. For each engine and network:
the greedy tokens over HTTP are those of qkvary, and the cache that the engine logs is the one that
``plan`` has, or the run ends with exit code 1. llama.cpp serves as many users with 512 tokens each
as fit into 64 MiB of cache, all at once. One line of JSON per case.
"""

import json
import statistics
import sys
import tempfile
import time
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch

from qkvary.arch.models import Model
from qkvary.arch.named_networks import make_portable, modern_network
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel
from qkvary.checkpoints.reference_models import find_reference
from qkvary.costs.engines import allocate_llama_cpp, allocate_vllm
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.inference.engines import ENGINES, EngineName, Serving
from qkvary.inference.serving import Server, choose_port, run_engine
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import machine, now

MIB = 2**20
POOL = 64 * MIB
"""Bytes of the cache in which users are counted."""
LENGTH, CHECKED, NEW = 512, 40, 100
"""Tokens of a user, tokens of a prompt, and greedy tokens after it."""
TOLERANCE = 0.005
"""The largest accepted difference between a planned and a logged cache, relative to it."""
VLLM_LATENT = "Q-K=V@decoupled-64@kv-norm"
"""With 8 KV heads of 64: the one latent of vLLM's kernel for CPUs."""
VARIANTS: dict[EngineName, tuple[str, ...]] = {
    "llama.cpp": ("QKV", "GQA-2", "Q-K=V", "Q-MQA", "MLA"),
    "vllm": ("QKV", "GQA-2", VLLM_LATENT),
}
ARCHITECTURES = {"QKV": "llama", "GQA-2": "llama"}


@dataclass(frozen=True)
class Case:
    """A network in an engine."""

    engine: EngineName
    program: tuple[str, ...]
    variant: str
    network: LanguageModel
    folder: Path
    options: tuple[str, ...]

    def prepare(self) -> tuple[Path, Model]:
        """Export the network, and read the export as ``plan`` does."""
        loaded = LoadedModel(self.network, ByteTokenizer())
        path = self.folder / ("one.gguf" if self.engine == "llama.cpp" else "one")
        if self.engine == "llama.cpp":
            export_gguf(loaded, path)
        else:
            export_folder(loaded, path, to=ARCHITECTURES.get(self.variant, "deepseek"))
        return path, find_reference(path)

    def run(self, throughput: tuple[int, ...]) -> dict[str, object]:
        """Return what was measured."""
        path, model = self.prepare()
        users = self.count_users(model)
        slots = users if self.engine == "llama.cpp" else max(throughput)
        asked = Serving(
            model=path,
            name="one",
            context=LENGTH,
            users=slots,
            host="127.0.0.1",
            port=choose_port("127.0.0.1", 0),
            options=self.options,
        )
        start = time.perf_counter()
        with run_engine(ENGINES[self.engine], asked, self.program, self.folder / "log") as server:
            ready = time.perf_counter() - start
            prompt = np.random.default_rng(0).integers(3, 256, CHECKED).tolist()
            tokens = self.ask(server, prompt, NEW)
            expected = self.decode(prompt, NEW)
            planned = self.plan(model, slots, server)
            return {
                "engine": self.engine,
                "variant": self.variant,
                "equal_tokens": next(
                    (number for number in range(NEW) if tokens[number] != expected[number]), NEW
                ),
                "tokens": NEW,
                "seconds_until_ready": round(ready, 1),
                "slots": slots,
                **planned,
                "users_in_64_mib": users,
                "resident_mib": round(resident_bytes(server.process.pid) / MIB),
                "tokens_a_second": dict(self.measure(server, throughput, slots)),
            }

    def count_users(self, model: Model) -> int:
        """Return how many users with 512 tokens fit into the pool, by the rules of ``plan``."""
        if self.engine == "vllm":
            cache = allocate_vllm(model, context=LENGTH, stored_as="fp32")
            return cache.blocks(POOL) // cache.blocks_per_sequence
        return POOL // allocate_llama_cpp(model, context=LENGTH, stored_as="fp32").total_bytes

    def plan(self, model: Model, slots: int, server: Server) -> dict[str, object]:
        """Return the planned cache next to the logged one."""
        line = server.cache
        if line is None:
            return {"logged": None}
        if self.engine == "vllm":
            cache = allocate_vllm(model, context=LENGTH, stored_as="fp32")
            planned, logged = cache.tokens(2**30), line.tokens
            names = ("planned_tokens_in_1_gib", "logged_tokens")
        else:
            cells = LENGTH * slots
            planned = allocate_llama_cpp(
                model, context=cells, sequences=slots, stored_as="fp32"
            ).total_bytes
            logged, names = line.nbytes, ("planned_bytes", "logged_bytes")
        agrees = logged is not None and abs(logged - planned) <= TOLERANCE * planned
        return {names[0]: planned, names[1]: logged, "agrees": agrees}

    def ask(self, server: Server, prompt: list[int], new: int) -> list[int]:
        """Return greedy tokens of the engine."""
        if self.engine == "vllm":
            body = {"model": "one", "prompt": prompt, "max_tokens": new, "temperature": 0}
            body |= {"ignore_eos": True, "return_token_ids": True}
            return post(server.url + "/completions", body)["choices"][0]["token_ids"]
        body = {"prompt": prompt, "n_predict": new, "temperature": 0, "return_tokens": True}
        body |= {"ignore_eos": True, "cache_prompt": False}
        return post(server.url.removesuffix("/v1") + "/completion", body)["tokens"]

    @torch.inference_mode()
    def decode(self, prompt: list[int], new: int) -> list[int]:
        """Return greedy tokens of qkvary."""
        # Asked to ignore the end of documents, llama.cpp never chooses it; vLLM goes on after it.
        never = [ByteTokenizer().separator] if self.engine == "llama.cpp" else []
        tokens = list(prompt)
        for _ in range(new):
            logits = self.network(torch.tensor([tokens]))[0, -1]
            logits[never] = -torch.inf
            tokens.append(int(logits.argmax()))
        return tokens[len(prompt) :]

    def measure(
        self, server: Server, users: tuple[int, ...], slots: int
    ) -> Iterator[tuple[str, float]]:
        """Yield the tokens a second of so many users at once, the median of three rounds."""
        if self.engine == "llama.cpp":
            users = tuple(sorted({*(one for one in users if one <= slots), slots}))
        draws = np.random.default_rng(1)
        for count in users:
            rates: list[float] = []
            for _ in range(3):
                prompts = draws.integers(3, 256, (count, CHECKED)).tolist()
                start = time.perf_counter()
                with ThreadPoolExecutor(count) as pool:
                    list(pool.map(lambda one: self.ask(server, one, NEW), prompts))
                rates.append(count * NEW / (time.perf_counter() - start))
            yield str(count), round(statistics.median(rates), 1)


def main() -> None:
    """Run all cases."""
    options = read_options()
    show("environment", **machine(), started=now())
    programs: dict[EngineName, str | None] = {
        "llama.cpp": options.llama_server,
        "vllm": options.vllm,
    }
    more: dict[EngineName, tuple[str, ...]] = {
        "llama.cpp": ("-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", str(options.threads)),
        "vllm": ("--dtype", "float32", "--enforce-eager"),
    }
    failures = 0
    for engine, program in programs.items():
        if program is None:
            continue
        found = ENGINES[engine].find(program)
        for variant in options.variants or VARIANTS[engine]:
            network = networks.make_network(make_config(variant, quick=options.quick))
            # Of vLLM's kernels for latents on a CPU the only one for 32 bits.
            is_latent = engine == "vllm" and "@decoupled" in variant
            given = (*more[engine], *(["--attention-backend", "CPU_MLA"] if is_latent else []))
            with tempfile.TemporaryDirectory() as folder:
                case = Case(engine, found, variant, network, Path(folder), given)
                measured = case.run((1,) if options.quick else (1, 4, 16))
            show("serving", **measured)
            failures += not (measured["equal_tokens"] == NEW and measured.get("agrees"))
    sys.exit(failures > 0)


def make_config(variant: str, *, quick: bool) -> LanguageModelConfig:
    """Return a network of 512 channels with 8 heads; a quick one has two layers."""
    label = networks.VARIANTS.get(variant, variant)
    size = {**networks.SIZES["30M"], "vocabulary": 257, **({"num_layers": 2} if quick else {})}
    if "@decoupled" in label:
        return make_portable(modern_network(**size, max_tokens=LENGTH), label)
    base = modern_network(**size, max_tokens=LENGTH, variant=label)
    layer = base.layers[0]
    whole = replace(layer.position, rotary_fraction=1.0)
    return replace(base, attention=replace(layer, position=whole))


def post(url: str, body: dict[str, Any]) -> Any:
    """Return the answer to a request."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310
        return json.load(answer)


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process and its children."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            group = int((status.parent / "stat").read_text().rpartition(")")[2].split()[2])
        except (OSError, ValueError):
            continue
        if group == process and "VmRSS" in fields:
            found += 1024 * int(fields["VmRSS"].split()[0])
    return found


def read_options() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-server", help="llama-server")
    parser.add_argument("--vllm", help="vllm, or a Python that has it")
    parser.add_argument("--variants", nargs="+", help="only these, by their names or labels")
    parser.add_argument("--quick", action="store_true", help="two layers, one user")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.llama_server is None and options.vllm is None:
        parser.error("expected --llama-server or --vllm")
    return options


def show(case: str, **found: object) -> None:
    """Print one line of JSON."""
    print(json.dumps({"benchmark": "serving", "case": case, **found}), flush=True)


if __name__ == "__main__":
    main()
