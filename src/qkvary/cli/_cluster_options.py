"""The options that choose and configure an executor."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors.catalog import ExecutorName, load_executor
from qkvary.studies.running.executors.contract import ClusterOptions

if TYPE_CHECKING:
    from qkvary.studies.running.executors.contract import Executor


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where runs are executed."""

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

    def load(self, out: Path, workers: int | None) -> "Executor | None":
        """Return the chosen executor; None for the workers of this machine.

        Args:
            out: The folder of runs.
            workers: The number of worker processes, if it was given.

        Raises:
            UsageError: for an unknown name, an invalid option, a missing library, or a scheduler
                that does not answer.
        """
        self._check()
        if workers is not None and self.executor != "local":
            raise UsageError(
                f"expected no --workers with --executor {self.executor}, got {workers}"
            )
        further = [option.partition("=") for option in self.slurm]
        if not all(name and value for name, _, value in further):
            raise UsageError(
                f"expected --slurm NAME=VALUE, such as account=name, got {', '.join(self.slurm)}"
            )
        options = ClusterOptions(
            address=self.address,
            gpu_share=self.gpu_share,
            runs_per_job=self.runs_per_job,
            parallel_jobs=self.parallel_jobs,
            minutes=self.minutes,
            partition=self.partition,
            slurm={name: value for name, _, value in further},
        )
        return load_executor(self.executor, options, out)

    def _check(self) -> None:
        """Refuse options of another executor."""
        default = Placement()
        for executor, names in _OPTIONS.items():
            given = [name for name in names if getattr(self, name) != getattr(default, name)]
            if given and self.executor != executor:
                option = given[0].replace("_", "-")
                raise UsageError(
                    f"expected --executor {executor} with --{option}, got {self.executor}"
                )


DEFAULT_PLACEMENT = Placement()
_OPTIONS = {
    "ray": ("address", "gpu_share"),
    "slurm": ("partition", "minutes", "runs_per_job", "parallel_jobs", "slurm"),
}
"""The options of each executor."""
