"""The entry point ``qkvary``: it finds commands by file name and turns errors into exit codes.

A command is a file of this folder with a function ``command``; its name is the file's name and its
help the first line of the file's docstring, read without importing it. So ``qkvary --help`` needs
neither torch nor any command, and no library. Does not know what the commands do.
"""

import errno
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkvary.cli._streams import never_fail_to_encode, print_error
from qkvary.storage.memory import is_out_of_memory
from qkvary.storage.packages import describe_missing
from qkvary.text.names import suggest

if TYPE_CHECKING:
    from cyclopts import App

FOLDER = Path(__file__).parent
HELP_WIDTH = 100
NOT_COMMANDS = {"__init__", "main"}

GROUPS = {
    "Look": ("variants", "published", "claims", "figures"),
    "Plan": ("cost", "plan"),
    "Train": ("train", "data"),
    "Decode": ("generate", "evaluate", "export", "bench"),
    "Explain": ("analyze", "convert"),
    "Study": ("studies", "study", "status", "report", "show", "pack", "unpack"),
    "Set up": ("doctor", "completion"),
}
"""The commands in the order of the help, by the user's goal."""

DONE, BUG, BAD_INPUT, RESOURCES, BROKEN_PIPE, INTERRUPTED = 0, 1, 2, 4, 0, 130
"""Exit codes; the others (3, 5, 6, 7, 143) come with the error as its ``exit_code``."""

RESUMING = (("study",), ("train",), ("data", "prepare"), ("data", "features"))
"""The commands that store their work while they run."""

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
    "Add --help to a command for its options, --json for one JSON document, --debug for "
    "tracebacks. Exit codes: 0 done, 2 bad input, 3 damaged data, 4 resources, 5 diverged, 6 busy, "
    "7 refused for safety."
)


def command_names() -> tuple[str, ...]:
    """Return the names of the commands, from the files of this folder."""
    stems = (path.stem for path in FOLDER.glob("*.py"))
    return tuple(sorted(stem for stem in stems if stem not in NOT_COMMANDS and stem[0] != "_"))


def summarise(name: str) -> str:
    """Return the first line of a command's docstring without importing it."""
    first_line = (FOLDER / f"{name}.py").read_text("utf-8").partition("\n")[0]
    return first_line.strip().strip('"')


def build_app() -> "App":
    """Return the app with every command registered but none imported."""
    # The library takes longer to import than the help takes to print.
    from cyclopts import App, Parameter

    from qkvary.cli._output import console

    app = App(
        name="qkvary",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=_version,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        # An option has no opposite unless it names one.
        default_parameter=Parameter(negative=()),
        console=console(width=HELP_WIDTH),
        error_console=console(sys.stderr, width=HELP_WIDTH),
    )
    for name in command_names():
        app.command(f"qkvary.cli.{name}:command", name=name, help=summarise(name))
    return app


def build_group(name: str, prefix: str) -> "App":
    """Return a command with a command for each file of this folder whose name has the prefix."""
    from cyclopts import App

    group = App(name=name, help=summarise(name), help_format="plaintext")
    for stem in sorted(path.stem for path in FOLDER.glob(f"{prefix}*.py")):
        own = stem.removeprefix(prefix)
        group.command(f"qkvary.cli.{stem}:command", name=own, help=summarise(stem))
    return group


def print_help() -> None:
    """Print the commands in their groups."""
    never_fail_to_encode(sys.stdout)
    lines = _help_lines(shutil.get_terminal_size((HELP_WIDTH, 0)).columns)
    sys.stdout.write("\n".join(lines) + "\n")


def _help_lines(width: int) -> Iterator[str]:
    yield "Usage: qkvary COMMAND\n"
    yield textwrap.fill(HELP, width)
    options = {"-h, --help": "Print this help.", "--version": "Print the version."}
    groups = {title: {name: summarise(name) for name in names} for title, names in GROUPS.items()}
    for title, rows in {**groups, "Options": options}.items():
        yield f"\n{title}"
        for name, text in rows.items():
            yield textwrap.fill(
                text,
                max(width, 40),
                initial_indent=f"  {name:12}",
                subsequent_indent=" " * 14,
                break_on_hyphens=False,
            )
    yield "\n" + textwrap.fill(EPILOGUE, width)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("qkvary")
    except metadata.PackageNotFoundError:
        return "not installed: this is a bare source tree"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: The words after ``qkvary``; ``None`` for those of this process.
    """
    _open_missing_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = _pop_debug(given)
    try:
        status = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        is_kept = any(tuple(given[: len(words)]) == words for words in RESUMING)
        resumes = "; the same command resumes where it stopped" if is_kept else ""
        print_error(f"interrupted{resumes}")
        return INTERRUPTED
    # The one place where errors become exit codes.
    except Exception as error:  # noqa: BLE001
        if debug:
            traceback.print_exc()
        return _report(error)
    return status


def _run(arguments: list[str]) -> int:
    if arguments in ([], ["--help"], ["-h"]):
        print_help()
        return DONE
    _check_command(arguments)
    command, bound, _ = build_app().parse_args(arguments, exit_on_error=False, print_error=False)
    result: Any = command(*bound.args, **bound.kwargs)
    return result if isinstance(result, int) else DONE


def _pop_debug(arguments: list[str]) -> bool:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--debug" not in arguments[:end]:
        return False
    arguments.remove("--debug")
    return True


def _check_command(arguments: list[str]) -> None:
    """Refuse an unknown command here: cyclopts would import every command to suggest one."""
    known = (*command_names(), "__complete")
    if not arguments or arguments[0].startswith("-") or arguments[0] in known:
        return
    hint = suggest(arguments[0], command_names())
    raise ValueError(f"expected a command, got {arguments[0]!r}; {hint}")


def _report(error: Exception) -> int:
    """Print an error and return its exit code."""
    from cyclopts import CycloptsError

    if isinstance(error, ImportError) and isinstance(error.__cause__, ImportError):
        # A command that cannot be imported: report the missing module.
        return _report(error.__cause__)
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        print_error(str(error))
        return code
    if isinstance(error, CycloptsError):
        print_error(str(error))
        return BAD_INPUT
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("qkvary"):
        print_error(describe_missing(str(error.name)))
        return BAD_INPUT
    if is_out_of_memory(error):
        print_error("out of memory; use fewer --workers, or a smaller batch, context or network")
        return RESOURCES
    if isinstance(error, OSError):
        print_error(_describe(error))
        return RESOURCES if error.errno in OUT_OF_RESOURCES else BAD_INPUT
    if isinstance(error, ValueError):
        print_error(str(error))
        return BAD_INPUT
    print_error(
        f"this is a bug: {type(error).__name__}: {error}; run again with --debug to see where"
    )
    return BUG


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    if isinstance(error, PermissionError) and error.filename is not None:
        return f"expected a file or folder that can be used, got {error.filename}: {reason}"
    return f"{error.filename}: {reason}" if error.filename is not None else reason


def _open_missing_streams() -> None:
    """Replace streams that the caller closed, so that printing does not fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Stays open as long as the process.
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115


def _abandon_stdout() -> None:
    """Discard further output for a pipe whose reader has gone, also at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())


def run() -> None:
    """Run as a program."""
    sys.exit(main())
