"""The options that choose and configure an executor."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from qkvary.cli._options import options
from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors.catalog import (
    ExecutorName,
    check_executor,
    load_executor,
)
from qkvary.studies.running.executors.contract import ClusterOptions

if TYPE_CHECKING:
    from qkvary.studies.running.executors.contract import Executor


@options
class Placement:
    """The executor of the runs."""

    executor: Annotated[
        ExecutorName,
        Parameter(
            help="Worker processes of this machine, tasks of a running Ray cluster, or jobs of a "
            "Slurm queue."
        ),
    ] = "local"
    address: Annotated[
        str | None,
        Parameter(help="ray: address of the cluster; RAY_ADDRESS or this machine if not given."),
    ] = None
    gpu_share: Annotated[
        float, Parameter(help="ray: GPUs of a run on a device; 0.25 lets four share one.")
    ] = 1.0
    partition: Annotated[str | None, Parameter(help="slurm: partition of the jobs.")] = None
    minutes: Annotated[int, Parameter(help="slurm: time limit of a job.")] = 60
    runs_per_job: Annotated[
        int, Parameter(help="slurm: runs that a job executes one after the other.")
    ] = 1
    parallel_jobs: Annotated[int, Parameter(help="slurm: jobs that run at once.")] = 256
    slurm: Annotated[
        tuple[str, ...],
        Parameter(
            name="--slurm",
            help="slurm: another option of sbatch, such as account=name; repeat it for more.",
        ),
    ] = ()

    shared_folder: Annotated[
        bool,
        Parameter(
            negative="--no-shared-folder",
            help="ray, slurm: whether all nodes see the folder of runs; if not, each works in a "
            "temporary folder, and finished runs return through Ray or submitit.",
        ),
    ] = True

    def check(self, workers: int | None) -> ClusterOptions:
        """Check what can be checked without the scheduler; return the options.

        Args:
            workers: The number of worker processes, if it was given.

        Raises:
            UsageError: for an option that is invalid or of another executor, or a missing library.
        """
        further = [option.partition("=") for option in self.slurm]
        if not all(name and value for name, _, value in further):
            raise UsageError(
                f"expected --slurm NAME=VALUE, such as account=name, got {', '.join(self.slurm)}"
            )
        given = {one.name: getattr(self, one.name) for one in fields(ClusterOptions)}
        given["slurm"] = {name: value for name, _, value in further}
        options = ClusterOptions(**given)
        check_executor(self.executor, options, workers, write=_write)
        return options

    def load(self, out: Path, workers: int | None) -> "Executor | None":
        """Return the chosen executor; None for the workers of this machine.

        Args:
            out: The folder of runs.
            workers: The number of worker processes, if it was given.

        Raises:
            UsageError: as ``check``, and for a scheduler that does not answer.
        """
        return load_executor(self.executor, self.check(workers), out)


def _write(name: str) -> str:
    negative = "no-" if name == "shared_folder" else ""
    return f"--{negative}{name.replace('_', '-')}"


DEFAULT_PLACEMENT = Placement()
