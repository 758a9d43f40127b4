"""Engines as children: they answer, end with us, and leave nothing; a stand-in is the engine."""

import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qkvary as qk
from qkvary.api import serve
from qkvary.arch.named_networks import make_portable, modern_network
from qkvary.checkpoints.models import save_model
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.inference.engines import ENGINES, CacheLine, Serving
from qkvary.inference.served_models import name_export
from qkvary.inference.serving import check_key, choose_port, describe_end, run_engine
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import ResourceError, StoppedError, UsageError
from tests import forked
from tests.conftest import ROOT
from tests.forked import ForkedPython
from tests.inference.stand_in_engine import CELLS, MEBIBYTES, Handler, write_engine

LLAMA_CPP, VLLM = ENGINES["llama.cpp"], ENGINES["vllm"]
ASKED = Serving(
    model=Path("one.gguf"), name="one", context=256, users=3, host="127.0.0.1", port=8080, key="k"
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "llama-server")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended.
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()


def wait_until(holds: Callable[[], object]) -> None:
    while not holds():
        time.sleep(0.02)


def test_commands_carry_what_was_asked_and_no_key() -> None:
    server = LLAMA_CPP.launch(("llama-server",), ASKED)
    assert server.environment == {"LLAMA_API_KEY": "k", "LLAMA_ARG_LOG_VERBOSITY": "4"}
    assert {"-c", "768", "-np", "3", "--no-context-shift"} <= {*server.command}
    python = LLAMA_CPP.launch(("python", "-m", "llama_cpp.server"), replace(ASKED, users=1))
    assert {"--n_ctx", "256"} <= {*python.command}
    vllm = VLLM.launch(("vllm",), replace(ASKED, options=("--dtype=float32",)))
    assert vllm.command[:3] == ("vllm", "serve", "one.gguf")
    assert vllm.command[-1] == "--dtype=float32"
    python = VLLM.launch(("python", "-m", VLLM.module), ASKED)
    assert python.command[3:5] == ("--model", "one.gguf")
    assert {"--max-model-len", "256", "--max-num-seqs", "3"} <= {*vllm.command}
    for launch in (server, python, vllm):
        assert "k" not in launch.command
        assert "k" in launch.environment.values()


def test_vllm_rotates_latents_by_torch(tmp_path: Path) -> None:
    """Its own kernel for CPUs does not (0.32.0)."""
    for kind, wanted in (("deepseek_v3", True), ("llama", False)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        launch = VLLM.launch(("vllm",), replace(ASKED, model=tmp_path))
        assert ('{"custom_ops": ["-rotary_embedding"]}' in launch.command) == wanted


def test_programs_are_found_or_their_installation_is_named(program: Path) -> None:
    assert LLAMA_CPP.find(str(program)) == (str(program),)
    assert VLLM.find(sys.executable) == (sys.executable, "-m", VLLM.module)
    assert VLLM.find(sys.executable, 16)[0] == sys.executable
    with pytest.raises(UsageError, match="the path of llama-server with"):
        LLAMA_CPP.find(sys.executable, 2)
    with pytest.raises(UsageError, match="no program /nowhere/vllm"):
        VLLM.find("/nowhere/vllm")


@pytest.mark.parametrize(
    ("engine", "log", "cache"),
    [
        # llama.cpp b4719 and later, two caches of a network with windows.
        (
            LLAMA_CPP,
            (
                "kv_cache: size =   64.00 MiB (  8192 cells,   2 layers,  4/4 seqs), K (f16)\n"
                "kv_cache: size =    6.50 MiB (  1024 cells,   4 layers,  4/4 seqs), K (f16)"
            ),
            CacheLine(tokens=4 * 8192, nbytes=round(70.5 * 2**20)),
        ),
        # vLLM 0.32 on a CPU.
        (
            VLLM,
            "INFO [kv_cache_utils.py] GPU KV cache size: 233,008 tokens",
            CacheLine(tokens=233_008, nbytes=None),
        ),
        (LLAMA_CPP, "loading", None),
        (VLLM, "loading", None),
    ],
)
def test_the_line_about_the_cache(engine: Any, log: str, cache: Any) -> None:
    assert engine.read_cache(log) == cache


def test_a_kernel_without_the_size_is_explained() -> None:
    reason = VLLM.explain("ValueError: Head dimension 144 is not supported by MLA on CPU")
    assert reason is not None
    assert "144" in reason
    log = "ERROR 11-26 [core.py:9] OSError: no space\nERROR 11-26 [core.py:9] RuntimeError: failed"
    assert VLLM.explain(log) == "OSError: no space"
    assert VLLM.explain("out of memory") is None


def test_an_address_that_others_reach_needs_a_key() -> None:
    check_key("127.0.0.1", None)
    check_key("0.0.0.0", "k")  # noqa: S104
    with pytest.raises(UsageError, match="--key-file"):
        check_key("0.0.0.0", None)  # noqa: S104


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"got {taken}"):
            choose_port("127.0.0.1", taken)
    assert choose_port("127.0.0.1", 0) > 0
    with pytest.raises(UsageError, match="expected a free port"):
        choose_port("no.such.host.invalid", 80)


def test_it_answers_with_the_key_and_ends_with_the_block(program: Path, tmp_path: Path) -> None:
    asked = replace(ASKED, port=choose_port("127.0.0.1", 0))
    with run_engine(LLAMA_CPP, asked, (str(program),), tmp_path / "log") as server:
        headers = {"Authorization": "Bearer k"}
        request = urllib.request.Request(server.url, headers=headers)  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            arguments = json.load(answer)
        assert arguments[:2] == ["-m", "one.gguf"]
        assert server.cache == CacheLine(tokens=CELLS, nbytes=round(MEBIBYTES * 2**20))
        child = server.process.pid
        assert is_alive(child)
    assert not is_alive(child)


def test_an_engine_survives_a_hangup_that_is_ignored(program: Path, tmp_path: Path) -> None:
    asked = replace(ASKED, port=choose_port("127.0.0.1", 0))
    for handler in (signal.SIG_IGN, signal.SIG_DFL):
        before = signal.signal(signal.SIGHUP, handler)
        try:
            with run_engine(LLAMA_CPP, asked, (str(program),), tmp_path / "log") as server:
                with nullcontext() if handler is signal.SIG_IGN else pytest.raises(StoppedError):
                    signal.raise_signal(signal.SIGHUP)
                assert is_alive(server.process.pid)
        finally:
            signal.signal(signal.SIGHUP, before)


def test_an_engine_that_ends_says_why(tmp_path: Path) -> None:
    program = write_engine(tmp_path / "llama-server", mode="ends")
    asked = replace(ASKED, port=choose_port("127.0.0.1", 0))
    with (
        pytest.raises(ResourceError, match="exit code 1: error: the weights are missing"),
        run_engine(LLAMA_CPP, asked, (str(program),), tmp_path / "log"),
    ):
        pass


def test_another_program_that_took_the_port_is_no_engine(program: Path, tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever).start()
        asked = replace(ASKED, port=other.server_port, key=None)
        try:
            with (
                pytest.raises(ResourceError, match=r"exit code 1: OSError: .*already in use"),
                run_engine(LLAMA_CPP, asked, (str(program),), tmp_path / "log") as server,
            ):
                # It answered before the engine came as far as the port.
                raise ResourceError(describe_end(LLAMA_CPP, server.wait(), tmp_path / "log"))
        finally:
            other.shutdown()


def test_a_full_disk_ends_the_command_in_one_sentence(program: Path, cache: Path) -> None:
    code = (
        "import resource, sys; from qkvary.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"sys.exit(main(['serve', 'tiny', '--program', {str(program)!r}, '--port=0']))"
    )
    options = {"input": "", "capture_output": True, "text": True, "check": False}
    environment = {**os.environ, "QKVARY_CACHE": str(cache)}
    done = forked.run([sys.executable, "-c", code], env=environment, **options)
    assert done.returncode == 4, done.stderr
    assert "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    # No half export, which the next call would serve, and no engine.
    assert not [path for path in cache.rglob("*") if path.is_file()]


@contextmanager
def command(program: Path, cache: Path, *, mode: str = "", until: str = "curl") -> Generator[Any]:
    """Run the command until its engine answers; yield it with the pid of its engine."""
    process = ForkedPython(
        [sys.executable, "-m", "qkvary", "serve", "tiny", "--program", str(program), "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "STAND_IN": mode, "QKVARY_CACHE": str(cache)},
        cwd=ROOT / "src",
    )
    try:
        seen = ""
        while until not in seen and process.poll() is None:
            seen += process.stderr.readline()  # type: ignore[union-attr]
        log = re.search(r"its log is (\S+)", seen)
        assert log is not None, seen
        written = Path(log[1])
        wait_until(lambda: written.exists() and "cells" in written.read_text())
        children = [int(one) for one in re.findall(r"pid (\d+)", written.read_text())]
        assert all(map(is_alive, children))
        yield process, children[-1], seen
        wait_until(lambda: not any(map(is_alive, children)))
    finally:
        process.kill()
        process.communicate()


def test_signals_end_the_command_and_its_engine(program: Path, cache: Path) -> None:
    with command(program, cache) as (process, _, seen):
        assert " is ready (users: " in seen
        assert "plan" in seen
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
        assert process.stderr.read() == "qkvary: stopped\n"
    with command(program, cache, mode="stubborn") as (process, child, _):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert is_alive(child)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert "Traceback" not in process.stderr.read()
    with command(program, cache) as (process, child, _):
        os.kill(child, signal.SIGKILL)
        assert process.wait() == 4
        assert "SIGKILL" in process.stderr.read()
    with command(program, cache, mode="mute", until="starts") as (process, _, _):
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    if sys.platform == "linux":
        with command(program, cache) as (process, _, _):
            process.kill()


def test_a_checkpoint_is_exported_once(
    program: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[object] = []
    open_checkpoint: Any = serve.open_checkpoint

    def count(*given: object, **more: object) -> object:
        loads.append(given)
        return open_checkpoint(*given, **more)

    asked: list[Serving] = []

    def refuse(_engine: object, serving: Serving, *_others: object) -> None:
        asked.append(serving)
        raise ResourceError("stop here")

    monkeypatch.setattr(serve, "open_checkpoint", count)
    monkeypatch.setattr(serve, "run_engine", refuse)
    options = ("--threads=2", "--jinja")
    for _ in range(2):
        with pytest.raises(ResourceError, match="stop here"):
            qk.serve("tiny", program=str(program), port=0, engine_option=options)
    assert asked[0].options == ("--threads", "2", "--jinja")
    assert len(loads) == 1
    files = [path.name for path in (cache / "served").glob("*.gguf")]
    assert len(files) == 1
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"engine": "ollama"}, "expected one of llama.cpp, vllm"),
        ({"context": 1_000_000}, "at most"),
        ({"users": 0}, "users"),
        ({"host": "0.0.0.0"}, "--key-file"),  # noqa: S104
        ({"engine": "vllm", "weights": "f16"}, "--weights"),
    )
    for given, message in refused:
        with pytest.raises(ValueError, match=message):
            qk.serve("tiny", program=str(program), port=0, **given)


def _refuse(*_given: object, **_more: object) -> None:
    raise ResourceError("stop here")


def test_a_folder_for_vllm_is_of_a_stock_class(
    program: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "run_engine", _refuse)
    with pytest.raises(UsageError, match="as llama"):
        qk.serve("tiny", engine="vllm", program=str(program), port=0)
    modern = modern_network(d_model=32, num_heads=2, num_layers=1, max_tokens=32, vocabulary=256)
    save_model(
        cache / "whole", LanguageModel(make_portable(modern)), ByteTokenizer(has_separator=False)
    )
    for _ in range(2):
        with pytest.raises(ResourceError, match="stop here"):
            qk.serve(cache / "whole", engine="vllm", program=str(program), port=0)
    (folder,) = (path for path in (cache / "served").iterdir() if path.name != "logs")
    config = json.loads((folder / "config.json").read_bytes())
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    # Another program's folder is served unchanged.
    with pytest.raises(UsageError, match="served unchanged"):
        qk.serve(str(folder), engine="vllm", program=str(program), port=0, tokenizer="gpt2")


def test_an_export_is_named_after_its_files(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"one")
    first = name_export(tmp_path, "f32")
    assert first == name_export(tmp_path, "f32")
    assert first != name_export(tmp_path, "q8_0")
    (tmp_path / "weights").write_bytes(b"more")
    assert first != name_export(tmp_path, "f32")
