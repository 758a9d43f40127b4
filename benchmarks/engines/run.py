"""The same weights in llama.cpp, transformers and here: logits, tokens, cache, speed, memory.

    python benchmarks/engines/run.py --env build/llama.cpp            # builds it once (minutes)
    python benchmarks/engines/run.py --env build/llama.cpp --quick    # tiny networks, seconds
    python benchmarks/engines/run.py --env build/llama.cpp --checkpoint runs/KEY   # a trained one

Every answer comes from a fresh process. Times are CPU time of a decoded token, the
median over tokens and then over rounds, in which the engines take turns. One line of JSON per case;
with 32-bit weights a logit or a token that differs ends the run with exit code 1.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import networks
import numpy as np
import torch

from qkvary.arch.labels import format_label
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.models import LoadedModel, save_model
from qkvary.costs.cache import cache_bytes_per_token
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.environment import machine, now, package_version

Weights = Literal["f32", "bf16", "q8_0"]
LLAMA_CPP = "llama-cpp-python==0.3.36"
TOLERANCE = 1e-5
"""The largest accepted difference of logits in 32 bits, relative to the largest logit."""
CHECKED, GREEDY = 40, 200
NEW = 32
"""Decoded tokens after a context."""
HERE = Path(__file__).parent
_BUFFER = re.compile(r"K \(\w+\): +([0-9.]+) MiB, V \(\w+\): +([0-9.]+) MiB")
MIB = 2**20


def main() -> None:
    """Run all cases."""
    options = read_options()
    python = build_llama_cpp(options.env)
    show(
        "environment",
        **machine(),
        transformers=package_version("transformers"),
        llama_cpp=LLAMA_CPP,
        options={
            name: value
            for name, value in vars(options).items()
            if name not in ("env", "checkpoint")
        },
        started=now(),
    )
    sizes = ("tiny",) if options.quick else options.sizes
    contexts = (64,) if options.quick else options.contexts
    failures = 0
    for size, variant, network in choose_networks(options, sizes, max(contexts)):
        with tempfile.TemporaryDirectory() as folder:
            case = Case(Path(folder), python, (size, variant, options.weights), network)
            if options.no_transformers:
                case.files.pop("transformers", None)
            failures += not case.check()
            for context in contexts:
                case.measure(context, options.rounds, options.threads)
    sys.exit(failures > 0)


def choose_networks(
    options: Namespace, sizes: Sequence[str], context: int
) -> Iterator[tuple[str, str, LanguageModel]]:
    """Yield sizes or the name of a checkpoint, variants, and the networks."""
    if options.checkpoint is not None:
        network = load_checkpoint(options.checkpoint).network
        longest = network.config.max_tokens
        if max(context + NEW, CHECKED + GREEDY) > longest:
            sys.exit(f"expected contexts of at most {longest - NEW} tokens with this network")
        yield Path(options.checkpoint).name, format_label(network.config.variant), network
        return
    for size in sizes:
        for variant in options.variants:
            config = networks.make_config(size, variant, context + 300)
            yield size, variant, networks.make_network(config)


def read_options() -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", type=Path, required=True, help="environment of llama.cpp")
    parser.add_argument("--quick", action="store_true", help="tiny networks, one context")
    parser.add_argument("--sizes", nargs="+", default=["30M", "124M"], choices=networks.SIZES)
    parser.add_argument(
        "--variants", nargs="+", default=list(networks.VARIANTS), choices=networks.VARIANTS
    )
    parser.add_argument(
        "--checkpoint", help="a trained network, by its folder, instead of sizes and variants"
    )
    parser.add_argument("--contexts", nargs="+", type=int, default=[64, 2048])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--no-transformers",
        action="store_true",
        help="do not run transformers, the slowest of the three after long contexts",
    )
    parser.add_argument(
        "--weights",
        default="f32",
        choices=get_args(Weights),
        help="of the matrices: with bf16 everything else here and the caches are too, with q8_0 "
        "caches have 32 bits, and the matrices here int8",
    )
    options = parser.parse_args()
    if min(options.rounds, options.threads, *options.contexts) < 1:
        parser.error("expected at least 1 round, thread and token of context")
    return options


def build_llama_cpp(folder: Path) -> Path:
    """Return the Python that has llama.cpp, and build it from source where it is missing."""
    python = folder.absolute() / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    found = subprocess.run(
        [str(python), "-c", "import llama_cpp"], check=False, capture_output=True
    )
    if found.returncode:
        # Without its library for images, which takes half of the time.
        build = {**os.environ, "CMAKE_ARGS": "-DLLAVA_BUILD=OFF"}
        install = [str(python), "-m", "pip", "install", "-q", LLAMA_CPP]
        subprocess.run(install, check=True, env=build)
    return python


class Case:
    """A network in every engine."""

    def __init__(
        self, folder: Path, python: Path, names: tuple[str, str, Weights], network: LanguageModel
    ) -> None:
        size, variant, self.weights = names
        self.python = python
        self.name = {"size": size, "variant": variant, "weights": self.weights}
        self.network = network
        self.files = {"qkvary": folder / "network", "llama.cpp": folder / "network.gguf"}
        if self.weights != "q8_0":
            self.files["transformers"] = self.files["qkvary"]
        save_model(self.files["qkvary"], self.network)
        export_gguf(LoadedModel(self.network, None), self.files["llama.cpp"], self.weights)
        self.draws = np.random.default_rng(0)

    def check(self) -> bool:
        """Compare logits with those in double precision, and greedy texts with each other.

        Only 32 bits have a bound: of 16 and of 8 the distances are printed.
        """
        prompt = self._draw(CHECKED)
        calls = {name: self._answer(name, prompt, GREEDY, logits=True) for name in self.files}
        with torch.inference_mode():
            expected = self.network.double()(torch.tensor([prompt]))[0].numpy()
        self.network.float()
        scale = np.abs(expected).max()
        found = {
            name: float(np.abs(np.array(one["logits"]) - expected).max() / scale)
            for name, one in calls.items()
        }
        texts = {tuple(one["tokens"]) for one in calls.values()}
        sound = len(texts) == 1 and all(distance <= TOLERANCE for distance in found.values())
        sound = sound or self.weights != "f32"
        show(
            "logits and greedy tokens",
            **self.name,
            logits_off_by={name: float(f"{distance:.2g}") for name, distance in found.items()},
            equal_greedy_tokens=GREEDY if len(texts) == 1 else 0,
            sound=sound,
        )
        return sound

    def measure(self, context: int, rounds: int, threads: int) -> None:
        """Print speed and memory after a context."""
        prompt = self._draw(context)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in self.files}
        for turn in range(rounds):
            names = list(self.files)
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                found[name].append(self._answer(name, prompt, NEW, threads=threads))

        def median(name: str, key: str) -> float:
            return statistics.median(one[key] for one in found[name])

        speeds = {name: round(1 / median(name, "token_seconds"), 1) for name in found}
        ends = {
            name: sorted(round(1 / one["token_seconds"], 1) for one in answers)
            for name, answers in found.items()
        }
        show(
            "decoding",
            **self.name,
            context=context,
            threads=threads,
            rounds=rounds,
            tokens_per_cpu_second=speeds,
            slowest_and_fastest={name: [rates[0], rates[-1]] for name, rates in ends.items()},
            prefill_tokens_per_cpu_second={
                name: round(context / median(name, "prefill_seconds")) for name in found
            },
            peak_mib={name: round(median(name, "peak_bytes") / MIB) for name in found},
            cache_mib={name: round(median(name, "cache_bytes") / MIB, 2) for name in found},
            llama_cpp_says=found["llama.cpp"][0]["says"],
            needed_cache_bytes_per_token=cache_bytes_per_token(
                self.network.config, "bfloat16" if self.weights == "bf16" else "float32"
            ),
            ours_over_llama_cpp=round(speeds["qkvary"] / speeds["llama.cpp"], 2),
        )

    def _draw(self, length: int) -> list[int]:
        return self.draws.integers(3, self.network.config.vocabulary, length).tolist()

    def _answer(
        self, name: str, prompt: list[int], new: int, *, logits: bool = False, threads: int = 1
    ) -> dict[str, Any]:
        """Return the answer of an engine from a process of its own."""
        call = {
            "engine": name,
            "path": str(self.files[name]),
            "prompt": prompt,
            "new": new,
            "texts": [],
            "logits": logits,
            "threads": threads,
            "wall": False,
            "weights": self.weights,
        }
        stock = name == "llama.cpp"
        python = str(self.python) if stock else sys.executable
        script = HERE / ("llama_cpp_worker.py" if stock else "python_worker.py")
        done = subprocess.run(
            [python, str(script)],
            input=json.dumps(call),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        if done.returncode:
            sys.exit(f"{name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        said = _BUFFER.search(done.stderr)
        if said is not None:
            found["says"] = said[0]
            found["cache_bytes"] = (float(said[1]) + float(said[2])) * MIB
        return found


def show(case: str, **found: object) -> None:
    """Print one line of JSON."""
    print(json.dumps({"benchmark": "engines", "case": case, **found}), flush=True)


if __name__ == "__main__":
    main()
