"""What every test stands on: one thread, and the same random examples in every run."""

import contextlib
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# Libraries that are imported stay: looking through them for garbage takes a third of collecting.
gc.disable()

os.environ.setdefault("OMP_NUM_THREADS", "1")

# Read when torch is loaded. Threads that wait else keep a processor busy, and where another test
# needs that processor, two threads take hundreds of times as long as one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Read when MKL is loaded: on some processors its results else depend on where memory begins, and
# equal numbers in other places give other bits.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Read when transformers is imported: nothing is looked up or reported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

# Read when triton is imported: kernels for GPUs run here too. Tests marked gpu want it to be 0.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Each of the processes that tests start would else compile the package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def find_memory() -> str | None:
    """Return a folder in memory, if the machine has the room and programs may be run from it."""
    memory = str(Path("/dev") / "shm")
    try:
        place = os.statvfs(memory)
    except OSError:
        return None
    has_room = place.f_bavail * place.f_frsize >= 4 * 2**30
    may_run = not place.f_flag & os.ST_NOEXEC
    return memory if has_room and may_run and os.access(memory, os.W_OK) else None


# A disk takes milliseconds for everything that must last, and tests write much of that.
if "TMPDIR" not in os.environ and (memory := find_memory()):
    os.environ["TMPDIR"] = tempfile.tempdir = memory

# Built kernels and timings of this run, shared by its workers, and not the developer's.
CACHE = Path(tempfile.gettempdir()) / f"qkvary-tests-{os.getpid()}"
KERNELS = ROOT / ".pytest_cache" / "kernels"
"""The built kernels of the run before: a compiler takes ten seconds for them."""
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
IS_FIRST = not WORKER
BUILDING: "list[subprocess.Popen[str]]" = []
CACHED = ROOT / "tests" / "training" / "__pycache__"
"""Python's own, of the last tests that are collected."""
if IS_FIRST:
    os.environ["QKVARY_CACHE"] = str(CACHE)
    with contextlib.suppress(OSError):
        shutil.copytree(KERNELS, CACHE / "decoding")


def keep_kernels() -> None:
    """Keep what was built last of each source, which is used again if the source stays as it is."""
    built = sorted((CACHE / "decoding").glob("*.so"), key=lambda path: path.stat().st_mtime)
    newest = {path.name.partition("-")[0]: path for path in built}
    shutil.rmtree(KERNELS, ignore_errors=True)
    KERNELS.mkdir(parents=True)
    for path in newest.values():
        for file in (path, path.with_name(f"{path.name}.sha256")):
            shutil.copy2(file, KERNELS)


# A choice by timing may be another in the next run; tests of such choices say so themselves.
os.environ["QKVARY_DECODE_KERNEL"] = "layer"

# What a developer's shell says about colours and widths is not what is tested.
for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm-256color"

# The same few examples in every run; --hypothesis-profile=thorough draws many others.
USUAL_EXAMPLES = 20
settings.register_profile(
    "repeatable",
    max_examples=USUAL_EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", settings.get_profile("repeatable"), max_examples=1000, derandomize=False
)
settings.load_profile("repeatable")


def examples(usual: int) -> settings:
    """Draw so many examples instead of the usual number, and more under ``thorough``."""
    # A profile that the command line names is loaded before tests are collected.
    profile = settings.default
    assert profile is not None
    return settings(max_examples=usual * profile.max_examples // USUAL_EXAMPLES)


Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import the files of tests from the end in the second worker of a fresh clone.

    Workers rewrite the assertions of all of them and keep what they rewrote: each does a half.
    """
    whole = session.config.args == session.config.getini("testpaths")
    if WORKER == "gw1" and whole and not CACHED.is_dir():
        for path in sorted((ROOT / "tests").rglob("test_*.py"), reverse=True):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            # What cannot be imported is reported where it is collected.
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(name)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Look for garbage again, but neither often nor among what was imported."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    if WORKER == "gw0" and any("decoding" in item.path.parts for item in session.items):
        begin_kernels()


def pytest_runtest_setup() -> None:
    """Draw the same numbers in every run, whatever ran before: layers without a seed draw some."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)


def begin_kernels() -> None:
    """Build the native kernels during the first tests, so that no worker waits for another."""
    from tests.forked import ForkedPython

    code = "from qkvary.nn.decoding import native; native.library()"
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    BUILDING.append(ForkedPython([sys.executable, "-c", code], **quiet))


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    for process in BUILDING:
        process.wait()
    if IS_FIRST:
        with contextlib.suppress(OSError):
            keep_kernels()
        shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Runs use one thread; so do tests, and xdist may use all cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def forked_workers() -> Iterator[None]:
    """Workers of studies are forked instead of started; ``started_workers`` starts them."""
    from tests.forked import fork_workers

    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        yield


@pytest.fixture
def started_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the workers of studies as users do."""
    from qkvary.studies.running.executors import local

    monkeypatch.setattr(local, "subprocess", subprocess)


@pytest.fixture(scope="session")
def rank_server() -> Iterator[object]:
    """The process that forks the ranks of runs; it takes seconds to start."""
    from tests.training.rank_server import RankServer

    running = RankServer()
    yield running
    assert running.close() == ""


class Typed:
    """Runs commands in this process, and returns what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: object, code: int = 0) -> str:
        """Return the standard output of a command that ends with an exit code."""
        return self.both(*words, code=code)[0]

    def json(self, *words: object, code: int = 0) -> dict[str, Any]:
        """Return the only document that a command prints."""
        return json.loads(self(*words, "--json", code=code))

    def error(self, *words: object, code: int = 2) -> str:
        """Return the standard error of a command that fails."""
        return self.both(*words, code=code)[1]

    def both(self, *words: object, code: int = 0) -> tuple[str, str]:
        """Return standard output and standard error."""
        from qkvary.cli.main import main

        self.capsys.readouterr()
        found = main([str(word) for word in words])
        printed = self.capsys.readouterr()
        assert found == code, f"{words}\n{printed.err}"
        return printed.out, printed.err


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Types commands."""
    return Typed(capsys)


@pytest.fixture(scope="session")
def run_python() -> Runner:
    """Run this interpreter in a process of its own and return what it printed."""

    def run(arguments: Sequence[str], **options: object) -> "subprocess.CompletedProcess[str]":
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"), PYTHONWARNINGS="error")
        environment.update(options.pop("env", {}))  # type: ignore[arg-type]
        return subprocess.run(  # type: ignore[call-overload]
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment,
            **options,
        )

    return run
