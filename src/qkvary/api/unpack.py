"""Add the runs in a file of packed runs to a folder of runs."""

from qkvary.api.arguments import reads_arguments
from qkvary.api.results import Result, say_in_lines
from qkvary.data.checkpoint_names import RUNS
from qkvary.storage.untrusted_files import StrPath, read_path
from qkvary.studies.running.run_archive import unpack_runs
from qkvary.studies.running.store import Store
from qkvary.text.names import count


@reads_arguments
def unpack(file: StrPath, *, out: StrPath = RUNS) -> Result[int]:
    """Add the runs in a file of packed runs to a folder of runs.

    Runs that are already in the folder are not replaced. ``study`` then trains the missing runs,
    and ``report`` writes the report.

    Args:
        file: A file that ``pack`` wrote.
        out: Folder of runs and reports.

    Raises:
        DamagedError: if the file is damaged.
    """
    found = unpack_runs(read_path(file, "the path of a file"), Store(out))
    there = f"; {found.present} were there already" if found.present else ""
    line = f"{count(found.added, 'run')} added to {out}{there}"
    document = {"added": found.added, "present": found.present}
    return Result(found.added, say_in_lines("unpacked runs", document, line))
