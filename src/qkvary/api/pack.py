"""Write the finished runs of a study or training into one file, to keep or to take elsewhere."""

from pathlib import Path

from qkvary.api.arguments import verb
from qkvary.api.options import PART, AnyStudy, Part, choose_runs
from qkvary.api.results import Result, say_in_lines
from qkvary.data.checkpoint_names import RUNS
from qkvary.storage.durable import check_file, make_directory
from qkvary.storage.errors import UsageError
from qkvary.studies.running.run_archive import Extra, pack_runs
from qkvary.studies.running.store import Store
from qkvary.text.names import count


@verb
def pack(
    study: AnyStudy,
    file: Path,
    *,
    part: Part = PART,
    without: tuple[Extra, ...] = (),
    out: Path = RUNS,
) -> Result[int]:
    """Write the finished runs of a study or training into one file, to keep or to take elsewhere.

    ``unpack`` adds the runs to another folder of runs. Trained networks are left out.

    Args:
        study: A study by its name, a Python file with a STUDY by its path, or a training: 'train
            lm-10m on mine'. In Python also a ``qk.Study``.
        file: The file to write, such as runs.jsonl.xz.
        part: The part of the study.
        without: Leave out attention maps (most of the bytes) or samples.
        out: Folder of runs and reports.

    Raises:
        ValueError: if there is no such study, or it has no finished run.
    """
    from qkvary.reports.study_results import gather_results

    check_file(file)
    store = Store(out)
    chosen, _ = choose_runs(store, study, part)
    keys = tuple(chosen.runs())
    if not any(store.state(key) == "done" for key in keys):
        raise UsageError(f"expected finished runs of {chosen.name} in {out}, got none")
    shown = [maps.run_key for maps in gather_results(chosen, store).attention]
    make_directory(file.absolute().parent)
    packed = pack_runs(store, keys, file, shown=shown, without=without)
    size = file.stat().st_size
    document = {"file": str(file), "runs": packed, "planned": len(keys), "bytes": size}
    line = f"{packed} of {count(len(keys), 'run')} in {file}, {size:,} bytes"
    return Result(packed, say_in_lines(f"packed runs: {chosen.name}", document, line))
