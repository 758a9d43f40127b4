"""Add the runs in a file of packed runs to a folder of runs."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import DEFAULT_OUT, Json, Out
from qkvary.cli._output import show_lines
from qkvary.studies.running.run_archive import unpack_runs
from qkvary.studies.running.store import Store
from qkvary.text.names import count


def command(
    file: Annotated[Path, Parameter(help="A file that qkvary pack wrote.")],
    /,
    *,
    out: Out = DEFAULT_OUT,
    json_output: Json = False,
) -> None:
    """Add the runs in a file of packed runs to a folder of runs.

    Runs that are there already stay. ``study`` then trains what is missing, ``report`` writes the
    report.
    """
    unpacked = unpack_runs(file, Store(out))
    document = {"added": unpacked.added, "present": unpacked.present}
    there = f"; {unpacked.present} were there already" if unpacked.present else ""
    text = f"{count(unpacked.added, 'run')} added to {out}{there}"
    show_lines(document, [text], json_output=json_output)
