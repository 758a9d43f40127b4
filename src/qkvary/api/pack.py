"""Write the finished runs of a study into one file, to keep or to take elsewhere."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import (
    DEFAULT_OUT,
    DEFAULT_PART,
    Json,
    Out,
    Part,
    StudyName,
    choose_study,
)
from qkvary.cli._output import show_lines
from qkvary.reports.study_results import gather_results
from qkvary.storage.durable import check_file, make_directory
from qkvary.storage.errors import UsageError
from qkvary.studies.running.run_archive import Extra, pack_runs
from qkvary.studies.running.store import Store
from qkvary.text.names import count


def command(
    study: StudyName,
    file: Annotated[Path, Parameter(help="The file to write, such as runs.jsonl.xz.")],
    /,
    *,
    part: Part = DEFAULT_PART,
    without: Annotated[
        tuple[Extra, ...],
        Parameter(help="Leave out maps (of attention, most of the bytes) or samples."),
    ] = (),
    out: Out = DEFAULT_OUT,
    json_output: Json = False,
) -> None:
    """Write the finished runs of a study into one file, to keep or to take elsewhere.

    ``qkvary unpack`` adds them to another folder of runs. Trained networks are left out.
    """
    check_file(file)
    chosen, store = choose_study(study, part), Store(out)
    keys = tuple(dict.fromkeys(cell.run_key for cell in chosen.cells()))
    if not any(store.state(key) == "done" for key in keys):
        raise UsageError(f"expected finished runs of {chosen.name} in {out}, got none")
    shown = [maps.run_key for maps in gather_results(chosen, store).attention]
    make_directory(file.absolute().parent)
    packed = pack_runs(store, keys, file, shown=shown, without=without)
    size = file.stat().st_size
    document = {"file": str(file), "runs": packed, "planned": len(keys), "bytes": size}
    text = f"{packed} of {count(len(keys), 'run')} in {file}, {size:,} bytes"
    show_lines(document, [text], json_output=json_output)
