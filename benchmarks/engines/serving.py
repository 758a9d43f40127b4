"""Engines that serve over HTTP: equal tokens, the cache that they log, users in a fixed cache.

    python benchmarks/engines/serving.py --llama-server build/llama-server --vllm env/bin/python
    python benchmarks/engines/serving.py --llama-server build/llama-server --quick
    python benchmarks/engines/serving.py --llama-server build/llama-server --checkpoints a.gguf half

Random weights as QKV, as GQA-2, with one tensor for key and value, and with a latent; or networks
that are stored. For each engine and network: the greedy tokens over HTTP are those of qkvary, and
the cache that the engine logs is the one that ``plan`` has, or the run ends with exit code 1. Users
with 512 tokens each are added to a cache of 64 MiB until one of them waits or is refused; llama.cpp
has cells for as many as fit into 64 MiB. One line of JSON per case, for ``serving_page.py``.
"""

import json
import re
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch

from qkvary.arch.models import Model
from qkvary.arch.named_networks import make_portable, modern_network
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.catalog import find_reference, load_checkpoint
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel
from qkvary.checkpoints.stock_networks import choose_architecture
from qkvary.costs.engines import allocate_llama_cpp, allocate_vllm
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.inference.engines import ENGINES, EngineName, Serving
from qkvary.inference.serving import Server, choose_port, run_engine
from qkvary.storage.environment import machine, now

MIB = 2**20
POOL = 64 * MIB
"""Bytes of the cache in which users are counted."""
LENGTH, CHECKED, NEW = 512, 40, 60
"""Tokens of a user, tokens of a prompt, and greedy tokens after it."""
ANSWER = 64
"""The tokens of a user's answer where users are counted."""
RATED = 40
"""The tokens of an answer where rates are measured."""
SLOTS = 40
"""The most requests at a time that vLLM is asked for."""
TOLERANCE = 0.005
"""The largest accepted difference between a planned and a logged cache, relative to it."""
VLLM_LATENTS = ("Q-K=V@decoupled-64@kv-norm", "Q-K=V@decoupled-64@latent-512@kv-norm")
"""With 8 KV heads of 64: the one latent of vLLM's kernels for CPUs, of heads and trained."""
VARIANTS: dict[EngineName, tuple[str, ...]] = {
    "llama.cpp": ("QKV", "GQA-2", "Q-K=V", "MLA", VLLM_LATENTS[0]),
    "vllm": ("QKV", "GQA-2", *VLLM_LATENTS),
}


@dataclass(frozen=True)
class Case:
    """A network in an engine."""

    engine: EngineName
    program: tuple[str, ...]
    name: str
    loaded: LoadedModel
    folder: Path
    threads: int
    is_random: bool

    def prepare(self) -> tuple[Path, Model]:
        """Export the network, and read the export as ``plan`` does."""
        path = self.folder / ("one.gguf" if self.engine == "llama.cpp" else "one")
        if self.engine == "llama.cpp":
            export_gguf(self.loaded, path)
        else:
            to = choose_architecture(self.loaded.network.config)
            export_folder(self.loaded, path, to=to)
        return path, find_reference(path)

    def run(self, throughput: tuple[int, ...]) -> dict[str, object]:
        """Return what was measured."""
        path, model = self.prepare()
        planned_users = self.count_users(model)
        start = time.perf_counter()
        with self.start(path, planned_users) as server:
            ready = time.perf_counter() - start
            prompt = self.draw(np.random.default_rng(0), 1, CHECKED)[0]
            tokens = self.ask(server, prompt, NEW)
            first = time.perf_counter() - start
            expected = self.decode(prompt, NEW)
            users, then = self.add_users(server, planned_users)
            found = {
                "engine": self.engine,
                "variant": self.name,
                "random": self.is_random,
                "equal_tokens": next(
                    (number for number in range(NEW) if tokens[number] != expected[number]), NEW
                ),
                "tokens": NEW,
                "seconds_until_ready": round(ready, 1),
                "seconds_until_first_answer": round(first, 1),
                **self.compare(model, planned_users, server),
                "planned_users_in_64_mib": planned_users,
                "users_in_64_mib": users,
                "one_more": then,
                "resident_mib": round(resident_bytes(server.process.pid) / MIB),
                "tokens_a_second": dict(self.measure(server, throughput)),
            }
        if self.engine == "llama.cpp":
            # The cells of one more user, by the engine's own line.
            with self.start(path, users + 1) as server:
                line = server.cache
                found["logged_with_one_more"] = None if line is None else line.nbytes
        return found

    def start(self, path: Path, users: int) -> AbstractContextManager[Server]:
        """Start the engine: with cells for so many users, or with a cache of 64 MiB for all."""
        asked = Serving(
            model=path,
            name="one",
            context=LENGTH,
            users=users if self.engine == "llama.cpp" else SLOTS,
            host="127.0.0.1",
            port=choose_port("127.0.0.1", 0),
            options=self.choose_options(),
        )
        return run_engine(ENGINES[self.engine], asked, self.program, self.folder / "log")

    def choose_options(self) -> tuple[str, ...]:
        """Return the engine's options: 32 bits, and for vLLM the cache."""
        if self.engine == "llama.cpp":
            return ("-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", str(self.threads))
        kept = (f"--kv-cache-memory-bytes={POOL}", "--dtype", "float32", "--enforce-eager")
        # Of vLLM's kernels for latents on a CPU the only one for 32 bits.
        is_latent = choose_architecture(self.loaded.network.config) == "deepseek"
        return (*kept, *(("--attention-backend", "CPU_MLA") if is_latent else ()))

    def count_users(self, model: Model) -> int:
        """Return how many users with 512 tokens fit into the pool, by the rules of ``plan``."""
        if self.engine == "vllm":
            cache = allocate_vllm(model, context=LENGTH, stored_as="fp32")
            return cache.users(POOL)
        return POOL // allocate_llama_cpp(model, context=LENGTH, stored_as="fp32").total_bytes

    def compare(self, model: Model, users: int, server: Server) -> dict[str, object]:
        """Return the planned cache next to the logged one: bytes in llama.cpp, tokens in vLLM."""
        line = server.cache
        if self.engine == "vllm":
            cache = allocate_vllm(model, context=LENGTH, stored_as="fp32")
            planned, logged = cache.tokens(POOL), None if line is None else line.tokens
        else:
            planned = allocate_llama_cpp(
                model, context=LENGTH * users, sequences=users, stored_as="fp32"
            ).total_bytes
            logged = None if line is None else line.nbytes
        return {
            "unit": "tokens" if self.engine == "vllm" else "bytes",
            "planned": planned,
            "logged": logged,
            "agrees": logged is not None and abs(logged - planned) <= TOLERANCE * planned,
        }

    def draw(self, draws: np.random.Generator, count: int, length: int) -> list[list[int]]:
        """Return random prompts without special tokens."""
        high = min(self.loaded.network.config.vocabulary, 256)
        return draws.integers(3, high, (count, length)).tolist()

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
        tokenizer = self.loaded.tokenizer
        ends = () if tokenizer is None else tokenizer.ends
        never = list(ends) if self.engine == "llama.cpp" else []
        tokens = list(prompt)
        for _ in range(new):
            logits = self.loaded.network(torch.tensor([tokens]))[0, -1]
            logits[never] = -torch.inf
            tokens.append(int(logits.argmax()))
        return tokens[len(prompt) :]

    def add_users(self, server: Server, planned: int) -> tuple[int, str]:
        """Return the most users at once, from the planned number on, and what one more gets."""
        users, then = planned, self.serve_at_once(server, planned)
        step = 1 if then is None else -1
        while True:
            found = self.serve_at_once(server, users + step)
            users += step
            if step == 1 and found is not None:
                return users - 1, found
            if step == -1 and found is None:
                return users, str(then)
            then = found

    def serve_at_once(self, server: Server, count: int) -> str | None:
        """Return what happens to one of so many users with 512 tokens, None if all are served."""
        prompts = self.draw(np.random.default_rng(count), count, LENGTH - ANSWER)
        before = read_preemptions(server)
        with ThreadPoolExecutor(count) as pool:
            spans = list(pool.map(lambda one: stream(server, one, ANSWER), prompts))
        if any(span is None for span in spans):
            return "refused"
        if read_preemptions(server) > before:
            return "interrupted"
        firsts, ends = zip(*(span for span in spans if span is not None), strict=True)
        return None if max(firsts) < min(ends) else "waits"

    def measure(self, server: Server, users: tuple[int, ...]) -> Iterator[tuple[str, float]]:
        """Yield the tokens a second of so many users at once, the median of three rounds."""
        draws = np.random.default_rng(1)
        for count in users:
            rates: list[float] = []
            for _ in range(3):
                prompts = self.draw(draws, count, CHECKED)
                start = time.perf_counter()
                with ThreadPoolExecutor(count) as pool:
                    list(pool.map(lambda one: self.ask(server, one, RATED), prompts))
                rates.append(count * RATED / (time.perf_counter() - start))
            yield str(count), round(statistics.median(rates), 1)


def main() -> None:
    """Run all cases."""
    options = read_options()
    show("environment", **machine(), started=now())
    programs: dict[EngineName, str | None] = {
        "llama.cpp": options.llama_server,
        "vllm": options.vllm,
    }
    failures = 0
    for engine, program in programs.items():
        if program is None:
            continue
        found = ENGINES[engine].find(program)
        random = not options.checkpoints
        for name, loaded in networks_of(engine, options):
            with tempfile.TemporaryDirectory() as folder:
                case = Case(engine, found, name, loaded, Path(folder), options.threads, random)
                measured = case.run((1,) if options.quick else (1, 4, 16))
            show("serving", **measured)
            failures += not (measured["equal_tokens"] == NEW and measured["agrees"])
    sys.exit(failures > 0)


def networks_of(engine: EngineName, options: Namespace) -> Iterator[tuple[str, LoadedModel]]:
    """Yield the networks of an engine by name."""
    for path in options.checkpoints:
        loaded = load_checkpoint(path)
        yield path.stem, LoadedModel(loaded.network.float(), loaded.tokenizer)
    for variant in () if options.checkpoints else options.variants or VARIANTS[engine]:
        network = networks.make_network(make_config(variant, quick=options.quick))
        yield variant, LoadedModel(network, ByteTokenizer())


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
    with open_request(url, body) as answer:
        return json.load(answer)


def open_request(url: str, body: dict[str, Any] | None = None) -> Any:
    """Send a request to an engine that was started here; without a body it only reads."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    # The address is always that of our own child process on loopback: no other scheme gets here.
    request = urllib.request.Request(url, data, headers)  # noqa: S310
    return urllib.request.urlopen(request, timeout=600)  # noqa: S310


def stream(server: Server, prompt: list[int], new: int) -> tuple[float, float] | None:
    """Return when the first and the last token came, or None if the request was refused."""
    body = {"model": "one", "prompt": prompt, "max_tokens": new, "temperature": 0}
    body |= {"ignore_eos": True, "cache_prompt": False, "stream": True}
    times: list[float] = []
    try:
        with open_request(server.url + "/completions", body) as answer:
            for line in answer:
                if line.startswith((b"error", b'data: {"error"')):
                    return None
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())
    except urllib.error.HTTPError:
        return None
    return (times[0], times[-1]) if times else None


def read_preemptions(server: Server) -> float:
    """Return how often vLLM has taken the cache of a user for another."""
    try:
        with open_request(server.url.removesuffix("/v1") + "/metrics") as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError:
        # llama.cpp has none, and takes nothing.
        return 0.0
    found = re.findall(r"^vllm:num_preemptions_total\S* (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


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
    parser.add_argument("--vllm", help="a Python that has vLLM, or vllm")
    parser.add_argument("--variants", nargs="+", help="only these, by their names or labels")
    parser.add_argument("--checkpoints", nargs="+", type=Path, default=(), help="stored networks")
    parser.add_argument("--quick", action="store_true", help="two layers, rates of one user")
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
