"""The options of ``train``: the corpus, changes to the preset, execution, and running."""

import dataclasses
import math
import os
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from qkvary.cli._options import Log, convert_threads, options, positive
from qkvary.storage.checkpoint_folders import DEFAULT_KEEP
from qkvary.storage.errors import UsageError
from qkvary.studies.pretraining import TrainingOverrides
from qkvary.tasks.config import Protocol
from qkvary.training.config import OnNonfinite, Precision


@options
class Corpus:
    """The training data."""

    data: Annotated[
        str | None,
        Parameter(
            help="A text file, a folder, a corpus by name, hf:owner/name, or a prepared set. What "
            "is not prepared is prepared. The preset's own corpus if not given."
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Parameter(
            help="gpt2, bytes, characters, or a tokenizer.json; the preset's own if not given."
        ),
    ] = None


@options
class Changes:
    """Changes to the preset."""

    steps: Annotated[
        int | None, positive("Steps; warm-up and validations are shortened with them.")
    ] = None
    minutes: Annotated[
        float | None,
        Parameter(help="Minutes of each run instead of --steps, estimated on this processor."),
    ] = None
    batch_size: Annotated[int | None, positive("Rows per step, over all processes.")] = None
    context: Annotated[int | None, positive("Tokens per row: 256, 1k.")] = None
    learning_rate: Annotated[float | None, Parameter(help="The peak of the learning rate.")] = None
    evaluate_every: Annotated[int | None, positive("Steps between validations.")] = None
    validation_tokens: Annotated[
        int | None,
        positive("Tokens per validation; as many as published, else 64k, fewer in a short run."),
    ] = None
    test_tokens: Annotated[
        int | None,
        positive("Tokens scored at the end; all if not given, fewer in a short run."),
    ] = None
    on_nonfinite: Annotated[
        OnNonfinite | None,
        Parameter(help="Action at a step with a non-finite loss or gradient: stop, or skip."),
    ] = None
    spike_guard: Annotated[
        bool | None,
        Parameter(
            negative="--no-spike-guard", help="End a run whose loss stays far above earlier ones."
        ),
    ] = None
    protocol: Annotated[
        Protocol | None, Parameter(help="packed, or padded-paper: the published one.")
    ] = None
    document_mask: Annotated[bool, Parameter(help="Attend within a document only.")] = False

    def overrides(self, steps: int | None, execution: dict[str, Any]) -> TrainingOverrides:
        """Return the overrides of the preset, with the steps that were chosen if any were."""
        given: dict[str, Any] = dataclasses.asdict(self)
        del given["minutes"]
        given |= {"steps": steps or self.steps, "execution": execution}
        return TrainingOverrides(**given)

    def check(self) -> None:
        """Refuse two lengths of a training."""
        if self.steps is not None and self.minutes is not None:
            raise UsageError("expected --steps or --minutes, got both")


@options
class Computing:
    """The execution settings."""

    micro_batch_size: Annotated[int | None, positive("Rows per forward pass, in each process.")] = (
        None
    )
    precision: Annotated[
        Precision | None, Parameter(help="full, or bf16: products in bfloat16.")
    ] = None
    compile: Annotated[
        bool | None, Parameter(negative="--no-compile", help="Compile the network with torch.")
    ] = None
    recompute_blocks: Annotated[
        bool | None,
        Parameter(help="Recompute blocks for their gradient: less memory, a third more work."),
    ] = None
    threads: Annotated[
        int | None,
        Parameter(
            converter=convert_threads,
            help="Threads on a CPU; the number of processors if not given, 1 under torchrun. "
            "Another number is another run.",
        ),
    ] = None

    def overrides(self, device: str) -> dict[str, Any]:
        """Return the execution settings to override on a device."""
        is_single = device == "cpu" and "WORLD_SIZE" not in os.environ
        default = (os.cpu_count() or 1) if is_single else 1
        return {**dataclasses.asdict(self), "threads": self.threads or default}


@options
class Running:
    """Logging, checkpoints, resuming, and the strategy of several processes."""

    sample: Annotated[str | None, Parameter(help="Continue this text at each validation.")] = None
    log: Log = None
    checkpoint_seconds: Annotated[float, Parameter(help="Seconds between two checkpoints.")] = 60.0
    keep: Annotated[int, positive("Number of newest checkpoints to keep; at least 1.")] = (
        DEFAULT_KEEP
    )
    allow_change: Annotated[
        bool,
        Parameter(
            help="Resume runs that were begun with other threads, another device or another "
            "--micro-batch-size."
        ),
    ] = False
    anew: Annotated[bool, Parameter(help="Leave such runs, and begin new ones.")] = False
    strategy: Annotated[
        Literal["ddp", "fsdp"],
        Parameter(
            help="Under torchrun: ddp gives every process the whole network, fsdp a shard of it."
        ),
    ] = "ddp"

    def check(self) -> None:
        """Refuse an invalid interval of checkpoints."""
        if not 0.0 <= self.checkpoint_seconds < math.inf:
            raise UsageError(
                "expected a number of seconds for --checkpoint-seconds, 0 for every step, got "
                f"{self.checkpoint_seconds}"
            )


OWN_CORPUS = Corpus()
NO_CHANGES = Changes()
AS_THE_PRESET = Computing()
DEFAULT_RUNNING = Running()
