"""The command-line app, built from the verbs in ``qkvary.api.verbs``.

``make_command`` turns a verb into a command. The parameters of the function are arguments and
options: a required parameter is positional unless its annotation names an option; where the
function accepts text, the command line passes the text that was typed. For every command:

- ``--json`` prints ``result.report.data`` as one document, and ``--full`` prints the whole report;
- ``--out`` and ``--format`` write the report, unless the verb itself has an ``out`` parameter;
- the parameter ``terminal`` is not an option: the app passes an object that shows progress and
    messages;
- ``result.notices`` go to standard error, and ``result.exit_code`` is the exit code.

Errors become exit codes in ``qkvary.cli.main``.
"""

import inspect
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ForwardRef,
    TextIO,
    Union,
    cast,
    get_args,
    get_origin,
)

from cyclopts import App, Parameter
from rich.console import Console
from rich.text import Text

from qkvary.api.arguments import list_parameters, read_help, unwrap
from qkvary.api.options import Formats, Terminal
from qkvary.api.verbs import GROUPS, TARGETS
from qkvary.cli.main import (
    EPILOGUE,
    HELP,
    HELP_WIDTH,
    TYPED,
    is_first_process,
    never_fail_to_encode,
    print_error,
    summarise,
)
from qkvary.reports.json_data import to_json
from qkvary.storage.environment import package_version
from qkvary.storage.errors import EndedEarlyError, UsageError
from qkvary.text.names import count, printable
from qkvary.text.numbers import Reads, duration
from qkvary.text.progress_line import ProgressLine, say

if TYPE_CHECKING:
    from qkvary.api.results import Result
    from qkvary.reports.report import ReportFormat


WIDTH_WITHOUT_TERMINAL = 160
MOST_FILES = 3
"""Maximum number of file names that are printed; the other files are counted."""


def build_app() -> App:
    """Return the app with every command registered but none imported."""
    app = App(
        name="qkvary",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=lambda: package_version("qkvary") or "not installed: this is a source tree",
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        # A flag has no --no-NAME form unless it declares one.
        default_parameter=Parameter(negative=()),
        console=console(width=HELP_WIDTH),
        error_console=console(sys.stderr, width=HELP_WIDTH),
    )
    app.register_install_completion_command("--completion")
    for name, text in GROUPS.items():
        app.command(App(name=name, help=text, help_format="plaintext"))
    for words in TARGETS:
        first, _, second = words.partition(" ")
        # Help of a group must not import its commands; other commands show their whole docstring.
        text, owner = (summarise(words), app[first]) if second else (None, app)
        owner.command(f"{__name__}:{words}", name=second or first, help=text)
    return app


def __getattr__(words: str) -> Callable[..., Any]:
    """Import a verb and return its command, when cyclopts first needs it."""
    target = TARGETS.get(words)
    if target is None:
        raise AttributeError(words)
    module, _, name = target.partition(":")
    return make_command(getattr(import_module(f"qkvary.{module}"), name))


def make_command(function: Callable[..., Any]) -> Callable[..., int]:
    """Return a verb's command, with the verb's parameters and those that every command has."""
    own = list_parameters(function)
    takes_terminal = own.pop("terminal", None) is not None
    added = dict(inspect.signature(_added).parameters)
    if "out" in own:
        # The verb writes its own files.
        del added["out"], added["formats"]
    if not takes_terminal:
        del added["quiet"]

    def command(*args: Any, **given: Any) -> int:
        asked = {name: given.pop(name, one.default) for name, one in added.items()}
        if asked.get("out") is not None:
            # The renderers take longer to import than most verbs take.
            from qkvary.reports.files import check_target

            check_target(asked["out"])
        elif asked.get("formats"):
            raise UsageError("expected --out with a folder for the files of --format, got no --out")
        if takes_terminal:
            is_quiet = asked.pop("quiet") or asked["json_output"]
            given["terminal"] = open_terminal(is_quiet=is_quiet)
        try:
            found = function(*args, **given)
        except EndedEarlyError as error:
            if asked["json_output"]:
                print_json(error.document)
            raise
        # A generated text is a result too; it is already printed.
        found = getattr(found, "result", found)
        # Under torchrun only one process prints.
        return print_result(found, **asked) if is_first_process() else found.exit_code

    texts = {**read_help(_added), **read_help(function)}
    parameters = [_type(one, texts[one.name]) for one in (*own.values(), *added.values())]
    made = cast("Any", command)
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {one.name: one.annotation for one in parameters}
    made.__doc__ = (inspect.getdoc(inspect.unwrap(function)) or "").replace("``", "")
    return command


def _added(
    *,
    json_output: Annotated[bool, Parameter(name="--json")] = False,
    full: bool = False,
    out: Path | None = None,
    formats: Formats = (),
    quiet: bool = False,
) -> None:
    """The options that every command has; those that show progress have ``quiet``.

    Args:
        json_output: Print one JSON document and nothing else.
        full: Print the whole report.
        out: Folder of the report, or a file: .html, .md or .json.
        formats: Format to write to --out (can be repeated).
        quiet: Print no progress.
    """


def _type(parameter: inspect.Parameter, text: str) -> inspect.Parameter:
    """Return a parameter with the type, kind and help that the command line needs."""
    choices, names = unwrap(parameter.annotation)
    kind = _choose_kind(choices)
    hides = tuple in (get_origin(kind), type(parameter.default))
    about = Parameter(help=text, show_default=False if hides else None)
    if bool in choices and parameter.default is not False:
        names.insert(0, Parameter(negative=f"--no-{parameter.name.replace('_', '-')}"))
    place, is_named = parameter.kind, any(one.name for one in names)
    if place is parameter.POSITIONAL_OR_KEYWORD:
        is_required = parameter.default is parameter.empty
        place = parameter.POSITIONAL_ONLY if is_required and not is_named else place
    return parameter.replace(kind=place, annotation=Annotated[(kind, about, *names)])


def _choose_kind(choices: list[Any]) -> Any:
    """Return the type of an option on the command line; it is text if the function accepts text."""
    choices = [one.typed if isinstance(one, Reads) else one for one in choices]
    takes_text = any(one is str or isinstance(one, str | ForwardRef) for one in choices)
    for one in choices:
        origin = get_origin(one)
        if inspect.isclass(origin) and issubclass(origin, Sequence):
            item = _choose_kind(unwrap(get_args(one)[0])[0])
            if item is str or not takes_text:
                return tuple[(item, ...)]
    rest = [one for one in choices if one is NoneType] if takes_text else choices
    return Union[(str, *rest) if takes_text else tuple(rest)]  # noqa: UP007


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error; ``cli.main`` handles it."""
        raise BrokenPipeError


def console(stream: TextIO | None = None, *, width: int = WIDTH_WITHOUT_TERMINAL) -> Console:
    """Return a console for a stream; it has ``width`` columns if the stream is no terminal."""
    target = sys.stdout if stream is None else stream
    never_fail_to_encode(target)
    if "COLUMNS" in os.environ:
        # With COLUMNS=0, rich would print nothing.
        columns = shutil.get_terminal_size((width, 0)).columns
    else:
        columns = None if target.isatty() else width
    return _Console(file=target, width=columns, highlight=False, emoji=False, soft_wrap=False)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, the schema's version first; NaN and infinities become null."""
    never_fail_to_encode(sys.stdout)
    sys.stdout.write(to_json(document))


def print_line(screen: Console, text: str) -> None:
    """Print one text without control characters; the terminal wraps long lines."""
    screen.print(Text(printable(text)), soft_wrap=True)


def open_terminal(*, is_quiet: bool) -> Terminal:
    """Return an object that shows progress and messages, or only warnings if ``is_quiet``."""
    silent = Terminal(warn=warn, command=shlex.join(["qkvary", *TYPED]))
    if is_quiet:
        return silent
    texts = partial(OrderedTexts, console())
    return silent._replace(show_progress=show_progress, say=say, open_texts=texts)


def warn(sentence: str) -> None:
    """Print a warning on standard error."""
    ProgressLine.clear_all()
    print_error(sentence)


def print_result(
    result: "Result[Any]",
    *,
    json_output: bool,
    full: bool,
    out: Path | None = None,
    formats: "Sequence[ReportFormat]" = (),
) -> int:
    """Print what a verb returned, write its report, and return the exit code."""
    files = [*result.files, *(result.save(out, formats) if out else ())]
    if json_output:
        document = dict(result.report.data)
        if files:
            document.setdefault("files", files)
        print_json(document)
    else:
        # Colours take longer to import than many commands take.
        from qkvary.reports.terminal import print_report

        screen = console()
        print_report(result.report, screen, full=full)
        for path in files[:MOST_FILES]:
            print_line(screen, f"written: {path}")
        if len(files) > MOST_FILES:
            others = count(len(files) - MOST_FILES, "more file")
            print_line(screen, f"and {others} in {files[0].parent}")
        for line in result.closing:
            print_line(screen, line)
    for notice in result.notices:
        print_error(notice)
    return result.exit_code


@contextmanager
def show_progress(what: str, unit: str = "windows") -> Generator[Callable[..., None]]:
    """Show progress and the time left; write fewer lines if the output is not a terminal."""
    started = time.monotonic()
    line = ProgressLine(started)
    first: list[int] = []

    def update(done: int, total: int, note: str = "") -> None:
        # Steps done before a job was resumed do not count for the speed.
        first[:] = first or [done]
        steps = done - first[0]

        def describe() -> str:
            parts = [f"{what}: {done:,}{f' of {total:,}' if total else ''} {unit}", note]
            if steps > 0 and done < total:
                left = (time.monotonic() - started) * (total - done) / steps
                parts.append(f"{duration(left, 2)} left")
            return ", ".join(filter(None, parts))

        line.show(describe)

    try:
        yield update
    finally:
        line.clear()


class OrderedTexts:
    """Prints texts in the order of their prompts, although all are generated at the same time.

    The first text that is not finished is printed while it is generated.
    """

    def __init__(self, screen: Console, prompts: Sequence[str]) -> None:
        self._stream = screen.file
        self._waiting = list(prompts)
        self._ended = [False] * len(prompts)
        self._current = 0
        self(0, "", False)

    def __call__(self, number: int, text: str, ends: bool) -> None:
        """Append to the text of one prompt, and print as far as the order of prompts allows."""
        self._waiting[number] += text
        self._ended[number] |= ends
        while self._current < len(self._waiting):
            self._print(self._waiting[self._current])
            self._waiting[self._current] = ""
            if not self._ended[self._current]:
                return
            self._current += 1
            self._print("\n" if self._current == len(self._waiting) else "\n\n")

    def _print(self, text: str) -> None:
        """Write a model's text without its control characters."""
        self._stream.write("\t".join(printable(part) for part in text.split("\t")))
        self._stream.flush()
