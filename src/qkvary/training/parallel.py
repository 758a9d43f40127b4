"""Many processes train one network: each with all of it (DDP), or each with a part (FSDP2).

What torch gives is used as it is; here stands what a run needs around it: gradients that are
exchanged once a step, a norm over all processes, checkpoints that any number of processes can read,
and the network in one piece where somebody asks for it.
"""

import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from qkvary.checkpoints.sharded_state import (
    KINDS,
    Kind,
    Reader,
    Tensors,
    row_counts,
    shard_contents,
    shard_metadata,
    whole_contents,
)
from qkvary.checkpoints.training_state import (
    TrainingState,
    read_state,
    save_training_state,
    state_sha256,
)
from qkvary.storage.durable import clean_leftovers
from qkvary.storage.errors import DamagedError, ResourceError, UsageError
from qkvary.storage.jsonvalues import JsonValue, encode
from qkvary.storage.manifest import FileEntry
from qkvary.storage.rotation import (
    Contents,
    filling_step,
    find_newest,
    keep_from,
    keep_newest,
    stored_steps,
    write_checked,
    write_manifest,
)
from qkvary.training.config import Precision
from qkvary.training.distribution import Alone, Distribution
from qkvary.training.optimizers import optimizer_tensors, restore_optimizer
from qkvary.training.processes import PATIENCE_SECONDS, Place, Processes, joined

Strategy = Literal["ddp", "fsdp"]
"""``ddp``: every process has the whole network. ``fsdp``: each has some rows of every weight."""

_BLOCK = re.compile(r"(?:^|\.)blocks\.\d+$")


@contextmanager
def join_processes(
    strategy: Strategy, device: str, *, patience_seconds: float = PATIENCE_SECONDS
) -> Generator[Distribution]:
    """Join the processes that torchrun started for this run; without torchrun there is one.

    Args:
        strategy: How the processes share the work.
        device: What each computes on, ``cpu`` (gloo) or ``cuda`` (NCCL, a GPU for each process).
        patience_seconds: How long a process waits for the others before it gives up.

    Raises:
        UsageError: if there is no such strategy or device, or what torchrun said makes no sense.
        ResourceError: if the others cannot be found, or one of them is lost.
    """
    if strategy not in get_args(Strategy):
        raise UsageError(f"unknown strategy {strategy!r}; choices: {', '.join(get_args(Strategy))}")
    place = Place.of_environment(os.environ)
    if place.size == 1:
        yield Alone()
        return
    kind = torch.device(device).type
    with joined(place, device, patience_seconds=patience_seconds) as processes:
        yield Replicated(processes, kind) if strategy == "ddp" else Sharded(processes, kind)


class _Together:
    """What both strategies do in the same way."""

    def __init__(self, processes: Processes, kind: str) -> None:
        """Stand among ``processes``, on devices of a kind."""
        self.processes, self.kind = processes, kind
        self.rank, self.size = processes.rank, processes.size

    def add(self, values: Sequence[float]) -> list[float]:
        """Sum numbers over all processes; everybody gets the same bits."""
        return self.processes.add(values)

    def first(self, work: Callable[[], JsonValue]) -> Any:
        """Let the first process do something; return its answer to all."""
        return self.processes.first(work)

    def load(
        self,
        directory: Path,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        accept: Callable[[Mapping[str, JsonValue]], None],
        report: Callable[[str], None],
        keep: int,
    ) -> Mapping[str, JsonValue] | None:
        """Put back the newest checkpoint that every process found sound."""
        processes = self.processes
        reader = self._reader(model, optimizer)

        def begin() -> JsonValue:
            clean_leftovers(directory)
            return stored_steps(directory)

        def read(step: int) -> TrainingState:
            found: list[TrainingState] = []

            def work() -> JsonValue:
                state = read_state(directory, step, accept=accept, reader=reader)
                found.append(state)
                return encode(state.about)

            abouts = processes.do(work)
            if len(set(abouts)) > 1:
                raise DamagedError(
                    f"the processes do not see the same checkpoint of step {step} in {directory}: "
                    "it must be on a disk that all of them share"
                )
            return found[0]

        def tell(problem: str) -> None:
            if self.rank == 0:
                report(problem)

        state = find_newest(directory, processes.first(begin), read=read, report=tell)
        if state is None:
            return None
        self._restore(state, model, optimizer)
        step = state.step
        processes.first(lambda: keep_from(directory, step, keep))
        return state.about

    def _reader(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Reader:
        """What of a checkpoint this process reads."""
        raise NotImplementedError

    def _restore(
        self, state: TrainingState, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Put back what was read."""
        raise NotImplementedError


class Replicated(_Together):
    """Every process has the whole network, and they average their gradients (DDP)."""

    def place(self, model: nn.Module, precision: Precision) -> nn.Module:  # noqa: ARG002
        """Wrap the network; its weights are those of the first process."""
        placed = DistributedDataParallel(
            model,
            device_ids=[torch.cuda.current_device()] if self.kind == "cuda" else None,
            # Buffers follow from the configuration: they never differ.
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        if self.kind == "cpu" and self.size > 2:
            placed.register_comm_hook(None, _average_in_order)
        return placed

    def adding_up(self, placed: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Exchange gradients behind the last micro-batch only."""
        return nullcontext() if last else cast("DistributedDataParallel", placed).no_sync()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, which are the same everywhere."""
        return torch.nn.utils.get_total_norm(gradients, foreach=True)

    def save(
        self,
        directory: Path,
        *,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        about: Mapping[str, JsonValue],
        keep: int,
    ) -> None:
        """Let the first process write a checkpoint."""

        def write() -> None:
            state = TrainingState(
                step=step,
                weights=model.state_dict(),
                optimizer=optimizer_tensors(optimizer),
                about=about,
            )
            save_training_state(directory, state, keep=keep)

        self.processes.first(write)

    def digest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """One digest of all weights and of the optimizer's state."""
        return state_sha256(model.state_dict(), optimizer_tensors(optimizer))

    def whole(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:  # noqa: ARG002
        """Return the network, which is whole."""
        return model

    def _reader(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Reader:  # noqa: ARG002
        return Reader(number=self.rank, count=self.size)

    def _restore(
        self, state: TrainingState, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        model.load_state_dict(state.weights)
        restore_optimizer(optimizer, state.optimizer)


def _average_in_order(
    _state: object,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[Tensor]:
    """Average gradients, adding in the order of the ranks wherever a number lies in its bucket.

    What gloo does by itself adds in an order that depends on the place, and DDP gives gradients
    other places after its first step, so that a run that was stopped would go on with other bits.
    Two numbers have one sum only.
    """
    flat, size = bucket.buffer(), dist.get_world_size()
    share = -(-len(flat) // size)
    sent = flat.new_zeros(size * share)
    sent[: len(flat)] = flat
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    first, *others = received.view(size, share).unbind()
    for part in others:
        first += part
    dist.all_gather_single(sent, first / size)
    flat.copy_(sent[: len(flat)])
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(flat)
    return done


class Sharded(_Together):
    """Every process has some rows of each weight and of its optimizer's state (FSDP2).

    A block's weights are brought together when it is run. Checkpoints have one file for each
    process and can be read by any number of them.
    """

    def __init__(self, processes: Processes, kind: str) -> None:
        """Stand among ``processes``, on devices of a kind."""
        super().__init__(processes, kind)
        self.mesh: DeviceMesh = init_device_mesh(kind, (processes.size,))

    def place(self, model: nn.Module, precision: Precision) -> nn.Module:
        """Shard each block, and then what is outside of the blocks.

        With bfloat16 the blocks' weights travel as such, but for the norms, which compute in full
        precision; gradients are added up in the precision of the weights.
        """
        blocks = [module for name, module in model.named_modules() if _BLOCK.search(name)]
        for block in blocks:
            if precision == "bf16":
                norms = [m for m in block.modules() if isinstance(m, (nn.LayerNorm, nn.RMSNorm))]
                for norm in norms:
                    fully_shard(norm, mesh=self.mesh, reshard_after_forward=False)
                policy = MixedPrecisionPolicy(
                    param_dtype=torch.bfloat16,
                    reduce_dtype=next(model.parameters()).dtype,
                    cast_forward_inputs=False,
                )
                fully_shard(block, mesh=self.mesh, mp_policy=policy)
            else:
                fully_shard(block, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        return model

    @contextmanager
    def adding_up(self, placed: nn.Module, *, last: bool) -> Generator[None]:
        """Exchange gradients behind the last micro-batch only."""
        cast("FSDPModule", placed).set_requires_gradient_sync(last)
        yield

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, over all processes."""
        rows = [_local(gradient) for gradient in gradients]
        norm = torch.nn.utils.get_total_norm(rows, foreach=True)
        mine = norm.item()
        (total,) = self.add([mine * mine])
        return torch.tensor(total, dtype=torch.float64).sqrt().to(norm)

    def save(
        self,
        directory: Path,
        *,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        about: Mapping[str, JsonValue],
        keep: int,
    ) -> None:
        """Let every process write its rows; the first one makes a checkpoint of the files."""
        tensors = _tensors(model, optimizer)
        rows: Tensors = {kind: _shared(tensors[kind]) for kind in KINDS}
        contents = shard_contents(rows, number=self.rank, count=self.size)
        if self.rank == 0:
            contents |= whole_contents({kind: _unshared(tensors[kind]) for kind in KINDS})
        size = int(self.add([float(sum(file.size for file in contents.values()))])[0])
        with ExitStack() as stack:
            folder = Path(
                self.processes.first(
                    lambda: str(stack.enter_context(filling_step(directory, step, size)))
                )
            )
            answers = self.processes.do(lambda: [_write(folder, contents), row_counts(rows)])

            def finish() -> None:
                files = _collect(folder, [files for files, _ in answers])
                note = shard_metadata([counts for _, counts in answers])
                write_manifest(folder, step, files, {**about, **note})
                stack.close()
                keep_newest(directory, keep)

            self.processes.first(finish)

    def digest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """One digest of all weights and of the optimizer's state, as one process would have it."""
        tensors = _tensors(model, optimizer)
        return state_sha256(tensors["weights"], tensors["optimizer"], whole=_whole)

    def whole(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
        """Build the network in one piece; the other processes keep what they have."""
        weights: dict[str, Tensor] = {}
        for name, tensor in model.state_dict().items():
            whole = _whole(tensor)
            if self.rank == 0:
                weights[name] = whole.cpu()
        if self.rank:
            return model
        network = build()
        network.load_state_dict(weights)
        return network.train(model.training)

    def _reader(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Reader:
        parameters = _parameters(optimizer)
        weights: dict[str, Tensor] = model.state_dict()

        def wanted(kind: Kind, name: str, rows: int) -> range:
            is_weight = kind == "weights"
            tensor = weights.get(name) if is_weight else _parameter_of(name, parameters)
            if not isinstance(tensor, DTensor) or tensor.shape[0] != rows:
                return range(rows)
            return self._rows(rows)

        return Reader(number=self.rank, count=self.size, wanted=wanted)

    def _rows(self, rows: int) -> range:
        """Which of so many rows this process has: as ``torch.chunk`` shares them out."""
        share = -(-rows // self.size)
        return range(min(rows, self.rank * share), min(rows, (self.rank + 1) * share))

    def _restore(
        self, state: TrainingState, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        weights: dict[str, Tensor] = model.state_dict()
        for name, tensor in weights.items():
            mine = _local(tensor)
            mine.copy_(state.weights[name].reshape(mine.shape))
        parameters = _parameters(optimizer)
        tensors = {
            name: self._spread(tensor, _parameter_of(name, parameters))
            for name, tensor in state.optimizer.items()
        }
        restore_optimizer(optimizer, tensors)

    def _spread(self, tensor: Tensor, parameter: Tensor | None) -> Tensor:
        """Rows of the optimizer's state, as a part of the whole that belongs to a parameter."""
        if not isinstance(parameter, DTensor) or not tensor.ndim:
            return tensor
        mine = _local(parameter)
        return DTensor.from_local(
            tensor.to(mine).reshape(mine.shape),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    return {"weights": model.state_dict(), "optimizer": optimizer_tensors(optimizer)}


def _shared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: _local(tensor) for name, tensor in tensors.items() if isinstance(tensor, DTensor)}


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not isinstance(tensor, DTensor)}


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parameter_of(name: str, parameters: Sequence[Tensor]) -> Tensor | None:
    """The parameter that a tensor of the optimizer belongs to, by its name."""
    number, _, _ = name.partition(".")
    # A damaged file is asked about before its digest is known: it may hold any names.
    known = number.isdecimal() and int(number) < len(parameters)
    return parameters[int(number)] if known else None


def _write(folder: Path, contents: Mapping[str, Contents]) -> dict[str, JsonValue]:
    if not folder.is_dir():
        raise ResourceError(
            f"{folder} is not there: checkpoints of a network that is shared out need a disk that "
            "all processes share"
        )
    entries = write_checked(folder, contents)
    return {name: [entry.size, entry.sha256] for name, entry in entries.items()}


def _collect(folder: Path, answers: Sequence[Mapping[str, Any]]) -> dict[str, FileEntry]:
    """What all processes wrote, as far as it has arrived."""
    entries: dict[str, FileEntry] = {}
    for answer in answers:
        for name, (size, sha256) in answer.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size:
                raise ResourceError(f"{path} did not arrive on the disk of the first process")
            entries[name] = FileEntry(size=size, sha256=sha256)
    return entries
