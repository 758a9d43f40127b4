"""Serve a language model through the OpenAI API; the engine is llama.cpp or vLLM."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qkvary.api.arguments import options, verb
from qkvary.api.options import (
    CheckpointTokenizer,
    complete_checkpoint,
    find_model,
    open_checkpoint,
    say_nothing,
)
from qkvary.api.results import Result, say_in_lines
from qkvary.arch.models import Model
from qkvary.costs.engines import allocate_llama_cpp
from qkvary.data.checkpoint_names import find_checkpoint
from qkvary.inference.engines import ENGINES, CacheLine, EngineName, Serving
from qkvary.inference.served_models import (
    Weights,
    is_stock_folder,
    name_export,
    served_folder,
)
from qkvary.inference.serving import check_key, choose_port, describe_end, run_engine
from qkvary.storage.durable import make_directory
from qkvary.storage.errors import ResourceError, UsageError
from qkvary.storage.packages import require
from qkvary.storage.untrusted_files import read_file
from qkvary.text.numbers import Count, data_size

if TYPE_CHECKING:
    from qkvary.arch.networks import LanguageModelConfig
    from qkvary.checkpoints.stock_names import StockArchitecture

KEY_BYTES = 1_000
LONGEST = 4_096
"""Default context in tokens, for networks whose maximum is longer."""


@options
class Starting:
    """Options for starting the engine: its address, key and program."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8080
    """Port; 0 takes a free one."""
    key_file: Path | None = None
    """File with the key that requests must carry; needed if other machines can reach the
    address."""
    program: str | None = None
    """The engine's program (llama-server, vllm), or the Python in which the engine is installed."""
    engine_option: tuple[str, ...] = ()
    """An option for the engine itself, such as --threads=2 (can be repeated)."""

    def read_key(self) -> str | None:
        """Return the API key from its file, or ``None`` if no file is named."""
        if self.key_file is None:
            check_key(self.host, None)
            return None
        key = read_file(self.key_file, limit=KEY_BYTES).decode("utf-8", errors="replace").strip()
        if not key or not key.isprintable():
            raise UsageError(f"expected one line with a key in {self.key_file}")
        return key

    def read_options(self) -> tuple[str, ...]:
        """Return the extra options for the engine, each split into name and value."""
        return tuple(word for option in self.engine_option for word in option.split("=", 1))


STARTING = Starting()


@verb
def serve(
    model: Annotated[str, Parameter(completer=complete_checkpoint)],
    *,
    engine: EngineName = "llama.cpp",
    context: Count | None = None,
    users: Count = 1,
    weights: Weights | None = None,
    tokenizer: CheckpointTokenizer = None,
    starting: Starting = STARTING,
    say: Callable[[str], None] = say_nothing,
) -> Result[dict[str, Any]]:
    """Serve a language model through the OpenAI API; the engine is llama.cpp or vLLM.

    Exports the network into the cache directory (only in the first call), and starts the engine.
    Ctrl-C stops the engine. The engine refuses prompts longer than the context.

    Args:
        model: A checkpoint. A .gguf file (for llama.cpp) or a folder with a stock architecture
            (for vLLM) is served unchanged.
        engine: The program that runs the network: llama.cpp or vllm.
        context: Tokens of prompt and answer together, per user. If not given, the network's
            maximum, at most 4,096.
        users: Number of concurrent requests.
        weights: For llama.cpp: type of the matrices in the export; f32 if not given.
        tokenizer: The tokenizer to use if the checkpoint has none.
        starting: The address and key of the server, and the program and options of the engine.
        say: Called with each line for the user, such as the address of the server.

    Raises:
        ValueError: if there is no such checkpoint or engine, or the engine cannot run it.
        ResourceError: if the engine exits with an error; the message has the reason.
    """
    found = ENGINES.get(engine)
    if found is None:
        raise UsageError(f"expected an engine, got {engine!r}; choices: {', '.join(ENGINES)}")
    source, program = find_checkpoint(model), found.find(starting.program, users)
    key = starting.read_key()
    port = choose_port(starting.host, starting.port)
    path, notes = _prepare(source, model, engine, weights, tokenizer)
    described = find_model(path)
    longest = described.max_tokens or LONGEST
    chosen = context or min(longest, LONGEST)
    if chosen > longest:
        raise UsageError(f"expected a context of at most {longest:,} tokens, got {chosen:,}")
    asked = Serving(
        model=path,
        name=source.stem,
        context=chosen,
        users=users,
        host=starting.host,
        port=port,
        key=key,
        options=starting.read_options(),
    )
    logs = served_folder() / "logs"
    make_directory(logs)
    log = logs / f"{source.stem}-{port}.log"
    for line in (*(f"- {note}" for note in notes), f"{found.title} starts; its log is {log}"):
        say(line)
    with run_engine(found, asked, program, log) as server:
        predicted = _predict(described, engine, asked)
        head = f"{server.url} is ready (users: {asked.users}, tokens each: {asked.context:,})"
        for line in (head, *_describe_cache(found.title, server.cache, predicted)):
            say(line)
        say(_make_request(server.url, asked))
        code = server.wait()
    if code:
        raise ResourceError(describe_end(found, code, log))
    document = {
        "engine": engine,
        "url": server.url,
        "model": asked.name,
        "path": path,
        "context": asked.context,
        "users": asked.users,
        "cache": server.cache,
        "predicted_bytes": predicted,
        "log": log,
    }
    return Result(document, say_in_lines(f"serve: {source}", document, head))


def _prepare(
    source: Path, model: str, engine: EngineName, weights: Weights | None, tokenizer: Any
) -> tuple[Path, tuple[str, ...]]:
    """Return the file or folder that the engine loads, and notes on what a new export gives up.

    The network is loaded only to export it.
    """
    is_ready = source.suffix == ".gguf" if engine == "llama.cpp" else is_stock_folder(source)
    if is_ready:
        given = {"--weights": weights, "--tokenizer": tokenizer}
        for option, value in given.items():
            if value is not None:
                raise UsageError(f"expected no {option}, since {source} is served unchanged")
        return source, ()
    if weights is not None and engine != "llama.cpp":
        raise UsageError("expected --weights only with --engine llama.cpp")
    if engine == "vllm":
        require("transformers")

    target = served_folder() / name_export(source, engine, tokenizer)
    path = (
        target if engine == "vllm" else target.with_name(f"{target.name}-{weights or 'f32'}.gguf")
    )
    if path.exists():
        return path, ()
    loaded, _ = open_checkpoint(model, tokenizer, speaks=True)
    from qkvary.checkpoints.chat_templates import read_chat_template

    template = read_chat_template(source)
    if engine == "llama.cpp":
        from qkvary.checkpoints.gguf.export import export_gguf

        return path, export_gguf(loaded, path, weights or "f32", chat_template=template).notes
    from qkvary.checkpoints.huggingface.folders import export_folder

    to = _choose_class(loaded.network.config)
    return path, export_folder(loaded, path, to=to, chat_template=template).notes


def _choose_class(config: "LanguageModelConfig") -> "StockArchitecture":
    """Return the stock class that can express the network with the smallest cache."""
    from qkvary.checkpoints.huggingface.stock import find_obstacle

    reasons: list[str] = []
    for to in ("deepseek", "llama", "gpt2"):
        obstacle = find_obstacle(config, to)
        if obstacle is None:
            return to
        reasons.append(f"as {to}: {obstacle}")
    lacks = "), (".join(reasons)
    raise UsageError(
        f"expected a network that vLLM supports, got one with unsupported parts ({lacks})"
    )


def _predict(model: Model, engine: EngineName, asked: Serving) -> int | None:
    """Return how many bytes llama.cpp will allocate for its cache, computed as in ``plan``.

    Returns None for another engine, or if the bytes cannot be computed.
    """
    if engine != "llama.cpp":
        return None
    try:
        cells = asked.context * asked.users
        return allocate_llama_cpp(model, context=cells, sequences=asked.users).total_bytes
    except ValueError:
        return None


def _describe_cache(title: str, cache: CacheLine | None, predicted: int | None) -> tuple[str, ...]:
    if cache is None:
        return ()
    held = "" if cache.nbytes is None else f" in {data_size(cache.nbytes)}"
    planned = "" if predicted is None else f" (plan: {data_size(predicted)})"
    return (f"{title} says: cache of {cache.tokens:,} tokens{held}{planned}",)


def _make_request(url: str, asked: Serving) -> str:
    """Return a command that requests an answer from the server."""
    body = json.dumps({"model": asked.name, "prompt": "Once upon a time", "max_tokens": 40})
    headers = ["Content-Type: application/json"]
    if asked.key is not None:
        headers.append("Authorization: Bearer $(cat KEY_FILE)")
    shown = " ".join(f'-H "{header}"' for header in headers)
    return f"curl {url}/completions {shown} -d {shlex.quote(body)}"
