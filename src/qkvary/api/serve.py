"""Serve a language model through the OpenAI API; the engine is llama.cpp or vLLM."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkvary.api.arguments import verb
from qkvary.api.options import (
    SILENT,
    CheckpointTokenizer,
    Terminal,
    find_model,
    open_checkpoint,
)
from qkvary.api.results import Result, say_in_lines
from qkvary.arch.models import Model
from qkvary.costs.engines import allocate_llama_cpp
from qkvary.data.checkpoint_names import find_checkpoint
from qkvary.inference.engines import ENGINES, EngineName, Serving
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
"""Default context in tokens if the maximum of the network is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """The engine's program (llama-server, vllm), or the Python interpreter that has the engine."""
    engine_option: tuple[str, ...] = ()
    """An option for the engine itself, such as --threads=2 (can be repeated)."""


STARTING = Starting()


@verb
def serve(
    model: str,
    *,
    engine: EngineName = "llama.cpp",
    context: Count | None = None,
    users: Count = 1,
    weights: Weights | None = None,
    tokenizer: CheckpointTokenizer = None,
    starting: Starting = STARTING,
    terminal: Terminal = SILENT,
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
        terminal: Shows the address of the server, and the size of its cache.

    Raises:
        ValueError: if there is no such checkpoint or engine, or the engine cannot run it.
        ResourceError: if the engine exits with an error; the message has the reason.
    """
    found, source = ENGINES[engine], find_checkpoint(model)
    program, key = found.find(starting.program, users), _read_key(starting)
    port = choose_port(starting.host, starting.port)
    path = _prepare(source, model, engine, weights, tokenizer, terminal)
    described = find_model(path)
    longest = described.max_tokens or LONGEST
    if context is not None and context > longest:
        raise UsageError(f"expected a context of at most {longest:,} tokens, got {context:,}")
    asked = Serving(
        model=path,
        name=source.stem,
        context=context or min(longest, LONGEST),
        users=users,
        host=starting.host,
        port=port,
        key=key,
        options=tuple(word for one in starting.engine_option for word in one.split("=", 1)),
    )
    log = served_folder() / "logs" / f"{source.stem}-{port}.log"
    make_directory(log.parent)
    terminal.say(f"{found.title} starts; its log is {log}")
    with run_engine(found, asked, program, log) as server:
        head = f"{server.url} is ready (users: {asked.users}, tokens each: {asked.context:,})"
        terminal.say(head)
        predicted = _predict(described, asked) if engine == "llama.cpp" else None
        if server.cache is not None:
            nbytes = server.cache.nbytes
            held = "" if nbytes is None else f" in {data_size(nbytes)}"
            planned = "" if predicted is None else f" (planned: {data_size(predicted)})"
            tokens = f"{server.cache.tokens:,} tokens"
            terminal.say(f"{found.title} reports a cache of {tokens}{held}{planned}")
        terminal.say(_make_request(server.url, asked))
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


def _read_key(starting: Starting) -> str | None:
    """Return the API key from its file, or ``None`` if no file is named."""
    if starting.key_file is None:
        check_key(starting.host, None)
        return None
    key = read_file(starting.key_file, limit=KEY_BYTES).decode("utf-8", errors="replace").strip()
    if not key or not key.isprintable():
        raise UsageError(f"expected one line with a key in {starting.key_file}")
    return key


def _prepare(
    source: Path,
    model: str,
    engine: EngineName,
    weights: Weights | None,
    tokenizer: str | None,
    terminal: Terminal,
) -> Path:
    """Return the file or folder that the engine loads, after an export if necessary.

    The losses of a new export are printed.
    """
    is_gguf = engine == "llama.cpp"
    if source.suffix == ".gguf" if is_gguf else is_stock_folder(source):
        for option, value in {"--weights": weights, "--tokenizer": tokenizer}.items():
            if value is not None:
                raise UsageError(f"expected no {option}, since {source} is served unchanged")
        return source
    path = served_folder() / name_export(source, engine, tokenizer)
    if is_gguf:
        path = path.with_name(f"{path.name}-{weights or 'f32'}.gguf")
    elif weights is not None:
        raise UsageError("expected --weights only with --engine llama.cpp")
    else:
        require("transformers")
    if path.exists():
        return path
    loaded, _ = open_checkpoint(model, tokenizer, speaks=True)
    from qkvary.checkpoints.chat_templates import read_chat_template

    template = read_chat_template(source)
    if is_gguf:
        from qkvary.checkpoints.gguf.export import export_gguf

        made = export_gguf(loaded, path, weights or "f32", chat_template=template)
    else:
        from qkvary.checkpoints.huggingface.folders import export_folder

        to = _choose_class(loaded.network.config)
        made = export_folder(loaded, path, to=to, chat_template=template)
    for note in made.notes:
        terminal.say(f"- {note}")
    return path


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


def _predict(model: Model, asked: Serving) -> int | None:
    """Return the size of llama.cpp's cache in bytes, as in ``plan``, or None if it is unknown."""
    try:
        cells = asked.context * asked.users
        return allocate_llama_cpp(model, context=cells, sequences=asked.users).total_bytes
    except ValueError:
        return None


def _make_request(url: str, asked: Serving) -> str:
    """Return a command that requests an answer from the server."""
    body = json.dumps({"model": asked.name, "prompt": "Once upon a time", "max_tokens": 40})
    key = "" if asked.key is None else ' -H "Authorization: Bearer $(cat KEY_FILE)"'
    return f'curl {url}/completions -H "Content-Type: application/json"{key} -d {shlex.quote(body)}'
