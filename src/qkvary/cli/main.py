"""The entry point ``qkvary``: it prints the help and turns errors into exit codes.

``qkvary --help`` takes the help of each verb from the first line of the verb's file, without
importing the file. ``cli.app`` turns verbs into commands.
"""

import errno
import io
import os
import shlex
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from qkvary.api.verbs import GROUPS, TARGETS, VERBS
from qkvary.storage.environment import is_out_of_memory
from qkvary.storage.errors import StoppedError
from qkvary.storage.packages import describe_missing
from qkvary.text.names import printable, suggest
from qkvary.text.progress_line import discard

LONGEST_MESSAGE = 2000
"""Maximum printed length of an error message, in characters; a message may quote a long value."""

TYPED: list[str] = []
"""The command line of this process, as words, without ``qkvary``."""
PACKAGE = Path(__file__).parents[1]
HELP_WIDTH = 100
DONE, BUG, BAD_INPUT, RESOURCES, BROKEN_PIPE, INTERRUPTED = 0, 1, 2, 4, 0, 130
"""Exit codes that are set here; 3, 5, 6, 7 and 128 + a signal are the ``exit_code`` of errors."""
OUT_OF_RESOURCES = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
}
HELP = "Train, compare and explain transformers that share query, key and value projections."
EPILOGUE = (
    "Add --help to a command to see its options, --json to get one JSON document, or --debug to "
    "see tracebacks. Exit codes: 0 done, 2 bad input, 3 damaged data, 4 lack of resources, 5 "
    "diverged, 6 busy, 7 refused for safety, 128 + N stopped by signal N (130 Ctrl-C, 143 SIGTERM, "
    "129 SIGHUP)."
)


def is_first_process() -> bool:
    """Return whether this is the only process, or the first that torchrun started."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def print_error(message: str) -> None:
    """Print one error on standard error: what failed and what to do, without control characters."""
    never_fail_to_encode(sys.stderr)
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    text = "\n".join(lines) or "failed without a message"
    text = text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."
    # If standard error is closed, only the exit code remains.
    with suppress(OSError):
        sys.stderr.write("qkvary: " + printable(text) + "\n")
        sys.stderr.flush()


def never_fail_to_encode(stream: TextIO) -> None:
    """Make a stream escape the characters that it cannot encode."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def command_names() -> tuple[str, ...]:
    """Return the first word of every command, sorted."""
    return tuple(sorted({typed.partition(" ")[0] for typed in TARGETS}))


def summarise(typed: str) -> str:
    """Return the one-line help of a command or group, without importing it."""
    if typed in GROUPS:
        return GROUPS[typed]
    module = TARGETS[typed].partition(":")[0]
    path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    return path.read_text("utf-8").partition("\n")[0].strip().strip('"')


def print_help() -> None:
    """Print the commands in their groups."""
    never_fail_to_encode(sys.stdout)
    width = shutil.get_terminal_size((HELP_WIDTH, 0)).columns
    lines = ["Usage: qkvary COMMAND\n", textwrap.fill(HELP, width)]
    options = {
        "-h, --help": "Print this help.",
        "--version": "Print the version.",
        "--completion": "Let the shell complete commands and options.",
    }
    groups = {
        title: {name: summarise(name) for name in dict.fromkeys(one.split()[0] for one in verbs)}
        for title, verbs in VERBS.items()
    }
    for title, rows in {**groups, "Options": options}.items():
        lines.append(f"\n{title}")
        lines += [
            textwrap.fill(
                text,
                max(width, 40),
                initial_indent=f"  {name:13}",
                subsequent_indent=" " * 15,
                break_on_hyphens=False,
            )
            for name, text in rows.items()
        ]
    lines.append("\n" + textwrap.fill(EPILOGUE, width))
    sys.stdout.write("\n".join(lines) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default the one in ``sys.argv``, and return its exit code."""
    for name in ("stdout", "stderr"):
        # Streams that the caller closed are replaced, so that printing does not fail.
        if getattr(sys, name) is None:
            # Stays open as long as the process.
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given[: given.index("--") if "--" in given else None]
    if debug:
        given.remove("--debug")
    TYPED[:] = given
    try:
        status = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe has gone: discard further output, also at exit.
        discard(sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print_error("interrupted")
        return INTERRUPTED
    # The one place where errors become exit codes.
    except Exception as error:  # noqa: BLE001
        if debug:
            traceback.print_exc()
        message, status = _explain(error)
        # All processes that torchrun started are stopped together.
        if is_first_process() or not isinstance(error, StoppedError):
            print_error(message)
    return status


def _run(arguments: list[str]) -> int:
    if arguments in ([], ["--help"], ["-h"]):
        print_help()
        return DONE
    word, known = arguments[0], command_names()
    if not word.startswith("-") and word not in known:
        # cyclopts would import every command to suggest one.
        raise ValueError(f"expected a command, got {word!r}; {suggest(word, known)}")
    # Importing the library takes longer than printing the help.
    from qkvary.cli.app import build_app

    command, bound, _ = build_app().parse_args(arguments, exit_on_error=False, print_error=False)
    result: Any = command(*bound.args, **bound.kwargs)
    return result if isinstance(result, int) else DONE


def _explain(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code of an error."""
    from cyclopts import CycloptsError, UnusedCliTokensError

    if isinstance(error, ImportError) and isinstance(error.__cause__, ImportError):
        # If the command cannot be imported, report the missing module.
        return _explain(error.__cause__)
    if isinstance(code := getattr(error, "exit_code", None), int):
        return str(error), code
    if isinstance(error, UnusedCliTokensError):
        unused = shlex.join(error.unused_tokens or ())
        return f"expected no further argument, got {unused}", BAD_INPUT
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("qkvary"):
        return describe_missing(str(error.name)), BAD_INPUT
    if is_out_of_memory(error):
        advice = "use fewer --workers, or a smaller batch, context or network"
        return f"out of memory; {advice}", RESOURCES
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        message = reason if error.filename is None else f"{error.filename}: {reason}"
        return message, RESOURCES if error.errno in OUT_OF_RESOURCES else BAD_INPUT
    if isinstance(error, ValueError | CycloptsError):
        return str(error), BAD_INPUT
    what = f"{type(error).__name__}: {error}"
    return f"this is a bug: {what}; run again with --debug to see where", BUG


def interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``, or end the process if an import is in progress.

    During an import, the imported module might catch the exception and continue.
    """
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    if frame is None:
        raise KeyboardInterrupt
    # Streams may be in use: they cannot be written to in the handler of a signal.
    with suppress(OSError):
        os.write(2, b"qkvary: interrupted\n")
    os._exit(INTERRUPTED)


def run() -> None:
    """Run the command in ``sys.argv``, and end the process with its exit code."""
    # Where SIGINT is ignored, as in the background of a script, it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    sys.exit(main())
