"""Add the runs in a file of packed runs to a folder of runs."""

from pathlib import Path

from qkvary.api.arguments import verb
from qkvary.api.results import Result, say_in_lines
from qkvary.data.checkpoint_names import RUNS
from qkvary.studies.running.run_archive import unpack_runs
from qkvary.studies.running.store import Store
from qkvary.text.names import count


@verb
def unpack(file: Path, *, out: Path = RUNS) -> Result[int]:
    """Add the runs in a file of packed runs to a folder of runs.

    Runs that are already in the folder are not replaced; they get the attention maps and samples
    that they lack. ``study`` then trains the missing runs, and ``report`` writes the report. For a
    training, the same ``train`` command does both.

    Args:
        file: A file that ``pack`` wrote.
        out: Folder of runs and reports.

    Raises:
        DamagedError: if the file is damaged.
    """
    added, present, completed = unpack_runs(file, Store(out))
    there = f"; {present} were there already" if present else ""
    extras = f"; maps or samples added to {completed} of them" if completed else ""
    line = f"{count(added, 'run')} added to {out}{there}{extras}"
    document = {"added": added, "present": present, "completed": completed}
    return Result(added, say_in_lines("unpacked runs", document, line))
