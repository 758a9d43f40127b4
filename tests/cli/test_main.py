"""The entry point: what is found, what is refused, and which exit code an error becomes."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qkvary.api.verbs import VERBS
from qkvary.cli import main as module
from qkvary.cli.main import command_names, is_first_process
from tests import forked
from tests.conftest import ROOT, Typed

PROGRAM = "from qkvary.cli.main import run; run()"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


class RefusedError(Exception):
    exit_code = 7


def raising(error: BaseException) -> Callable[[list[str]], int]:
    def run(arguments: list[str]) -> int:
        raise error

    return run


def test_help_has_every_command_once_and_in_groups(typed: Typed) -> None:
    order: list[str] = []
    for title, verbs in VERBS.items():
        order += [title.split()[0], *dict.fromkeys(verb.split()[0] for verb in verbs)]
    lines = [line.strip("│╭─╮ ") for line in typed("--help").splitlines()]
    starts = [line.split()[0] for line in lines if line and line[0] != "-"]
    assert [word for word in starts if word in order] == order


@pytest.mark.parametrize(
    ("word", "hint"),
    [("varaints", "did you mean variants?"), ("qqq", "choices:")],
)
def test_unknown_command_is_answered_with_the_nearest(word: str, hint: str, typed: Typed) -> None:
    printed, said = typed.both(word, code=2)
    assert printed == ""
    assert said.startswith(f"qkvary: expected a command, got '{word}'")
    assert hint in said


def test_unknown_option_is_answered_with_the_nearest(typed: Typed) -> None:
    assert "Did you mean --d-model?" in typed.error("variants", "--d-modle", "64")


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ValueError("expected a, got b"), 2, "expected a, got b"),
        (RefusedError("leaves its folder"), 7, "leaves its folder"),
        (FileNotFoundError(errno.ENOENT, "No such file", "mine.py"), 2, "mine.py: No such file"),
        (OSError(errno.ENOSPC, "No space left", "runs"), 4, "runs: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), 2, "runs: Permission denied"),
        (MemoryError(), 4, "out of memory; "),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9"), 4, "out of"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), 4, "out of memory; "),
        (ModuleNotFoundError("x", name="torch"), 2, "torch is not installed"),
        (KeyError("odd"), 1, "this is a bug: KeyError: 'odd'; run again with --debug"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_become_exit_codes_without_a_traceback(
    error: BaseException, code: int, says: str, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    monkeypatch.setattr(module, "_run", raising(error))
    said = typed.error("variants", code=code)
    assert says in said
    assert said.startswith("qkvary: ")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("names", "is_first"),
    [({"RANK": "1"}, True), ({"RANK": "1", "WORLD_SIZE": "2"}, False), ({"WORLD_SIZE": "2"}, True)],
)
def test_one_of_the_processes_of_torchrun_prints(
    names: dict[str, str], is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() == is_first


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch, typed: Typed) -> None:
    monkeypatch.setattr(module, "_run", raising(ValueError("expected a, got b")))
    assert "Traceback" in typed.error("variants", "--debug")


def test_control_characters_in_messages_are_escaped(
    monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    error = ValueError("name \x1b[31m\udcff\nsecond   line\n\n")
    monkeypatch.setattr(module, "_run", raising(error))
    assert typed.error("variants") == "qkvary: name \\x1b[31m\\udcff\nsecond line\n"


def test_the_shell_learns_the_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: Typed
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    typed("--completion")
    (script,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".bashrc")
    assert all(name in script.read_text("utf-8") for name in command_names())


def test_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, "variants"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        check=False,
        timeout=60,
    )
    os.close(writing)
    assert (process.returncode, process.stderr) == (0, b"")


def test_closed_streams_are_no_error() -> None:
    line = f'"{sys.executable}" -c "{PROGRAM}" variants --label Q-K=V >&- 2>&-'
    result = subprocess.run(["sh", "-c", line], env=ENVIRONMENT, check=False, timeout=60)
    assert result.returncode == 0


SWALLOWS = (
    "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException: ..."
)


@pytest.mark.parametrize(("body", "said"), [("import swallows", "interrupted"), (SWALLOWS, "")])
def test_an_import_swallows_no_interruption(body: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS, "utf-8")
    code = f"import sys\nfrom qkvary.cli import main\nsys.path.insert(0, {str(tmp_path)!r})\n"
    code += f"main._run = lambda words: exec({body!r})\nmain.run()"
    options: dict[str, object] = {"capture_output": True, "text": True, "env": ENVIRONMENT}
    ended = forked.run([sys.executable, "-c", code], input="", check=False, **options)
    # Elsewhere the interruption is an exception, which code may handle.
    assert (ended.returncode, said in ended.stderr) == (130 if said else 0, True), ended.stderr
