"""Training of one network in several processes: replicated (DDP) or sharded (FSDP2).

This module adds four things to torch: gradient synchronization once per step, a norm over all
processes, checkpoints that any number of processes can read, and gathering of the full network.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

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
    file_contents,
    row_counts,
    shard_metadata,
)
from qkvary.checkpoints.training_state import TrainingState, read_state, state_sha256
from qkvary.storage.errors import DamagedError, ResourceError
from qkvary.storage.jsonvalues import JsonValue, encode
from qkvary.storage.manifest import (
    FileContents,
    FileEntry,
    checkpoint_directory,
    keep_newest,
    write_checked,
    write_manifest,
)
from qkvary.training.config import Precision, Strategy
from qkvary.training.distribution import Distribution
from qkvary.training.optimizers import optimizer_tensors, restore_optimizer
from qkvary.training.processes import TIMEOUT_SECONDS, Collectives, RankInfo, connect

_BLOCK = re.compile(r"(?:^|\.)blocks\.\d+$")


@contextmanager
def join_process_group(
    info: RankInfo, strategy: Strategy, device: str, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> Generator[Distribution]:
    """Join the process group that torchrun started."""
    kind = torch.device(device).type
    with connect(info, device, timeout_seconds=timeout_seconds) as processes:
        yield Replicated(processes, kind) if strategy == "ddp" else Sharded(processes, kind)


class _MultiProcess(Distribution):
    def __init__(self, processes: Collectives, kind: str) -> None:
        self.processes, self.kind = processes, kind
        self.rank, self.size = processes.rank, processes.size

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        return self.processes.all_reduce(values)

    def run_on_first(self, work: Callable[[], JsonValue]) -> Any:
        return self.processes.run_on_all(lambda: work() if self.is_first else None)[0]

    def read(
        self,
        directory: Path,
        step: int,
        *,
        key: str,
        reader: Reader,
    ) -> TrainingState:
        found: list[TrainingState] = []

        def work() -> JsonValue:
            found.append(read_state(directory, step, key=key, reader=reader))
            return encode(found[0].about)

        if len(set(self.processes.run_on_all(work))) > 1:
            raise DamagedError(
                f"the processes read different checkpoints of step {step} in {directory}: "
                "this directory must be on a disk that all processes share"
            )
        return found[0]


class Replicated(_MultiProcess):
    """Each process has the full network, and gradients are averaged (DDP)."""

    def wrap(self, model: nn.Module, _: Precision, /) -> nn.Module:
        """Wrap the network, and give every rank the weights of rank 0."""
        wrapped = DistributedDataParallel(
            model,
            device_ids=[torch.cuda.current_device()] if self.kind == "cuda" else None,
            # Buffers follow from the configuration, so they never differ.
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
        if self.kind == "cpu" and self.size > 2:
            wrapped.register_comm_hook(None, _average_in_order)
        return wrapped

    def no_sync(self, wrapped: nn.Module, /) -> AbstractContextManager[None]:
        """Return a context without synchronization of gradients."""
        return cast("DistributedDataParallel", wrapped).no_sync()


def _average_in_order(
    _state: object,
    # Documented, but not declared public.
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[Tensor]:
    """Average gradients in rank order, independent of their place in DDP's bucket.

    The order in which gloo adds gradients depends on their place. DDP rebuilds its buckets after
    the first step, so a resumed run would differ in its last bits. Two ranks do not need this.
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


class Sharded(_MultiProcess):
    """Each process has some rows of each weight and of its optimizer state (FSDP2).

    A block's weights are gathered when it runs. Checkpoints have one file per process and can be
    read by any number of processes.
    """

    def __init__(self, processes: Collectives, kind: str) -> None:
        super().__init__(processes, kind)
        self.mesh: DeviceMesh = init_device_mesh(kind, (processes.size,))

    def wrap(self, model: nn.Module, precision: Precision, /) -> nn.Module:
        """Shard each block, and then the rest of the network.

        With bfloat16, the weights of blocks are gathered in bfloat16. Only norms compute in full
        precision. Gradients are reduced in the precision of the weights.
        """
        blocks = [module for name, module in model.named_modules() if _BLOCK.search(name)]
        for block in blocks:
            policy = MixedPrecisionPolicy()
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
        fully_shard(model, mesh=self.mesh)
        return model

    @contextmanager
    def no_sync(self, wrapped: nn.Module, /) -> Generator[None]:
        """Return a context without synchronization of gradients."""
        sharded = cast("FSDPModule", wrapped)
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)

    def total_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the total norm of the gradients, over all processes."""
        rows = [_local(gradient) for gradient in gradients]
        norm = torch.nn.utils.get_total_norm(rows, foreach=True)
        mine = norm.item()
        (total,) = self.all_reduce([mine * mine])
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
        """Write one file per rank. At the end, rank 0 writes the manifest of the checkpoint."""
        tensors = _tensors(model, optimizer)
        rows = _choose(tensors, sharded=True)
        contents = file_contents(rows, number=self.rank, count=self.size)
        if self.is_first:
            contents |= file_contents(_choose(tensors, sharded=False))
        size = int(self.all_reduce([float(sum(file.size for file in contents.values()))])[0])
        with ExitStack() as stack:
            folder = Path(
                self.run_on_first(
                    lambda: str(stack.enter_context(checkpoint_directory(directory, step, size)))
                )
            )
            answers = self.processes.run_on_all(
                lambda: [_write(folder, contents), row_counts(rows)]
            )

            def finish() -> None:
                files = _collect(folder, [files for files, _ in answers])
                note = shard_metadata([counts for _, counts in answers])
                write_manifest(folder, step, files, {**about, **note})
                stack.close()
                keep_newest(directory, keep)

            self.run_on_first(finish)

    def digest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """Return the digest of all weights and optimizer state, as a single process computes it."""
        tensors = _tensors(model, optimizer)
        return state_sha256(tensors["weights"], tensors["optimizer"], whole=_whole)

    def gather_network(self, model: nn.Module, build: Callable[[], nn.Module], /) -> nn.Module:
        """Return the unsharded network on rank 0, ``model`` on others."""
        weights: dict[str, Tensor] = {}
        for name, tensor in model.state_dict().items():
            whole = _whole(tensor)
            if self.is_first:
                weights[name] = whole.cpu()
        if not self.is_first:
            return model
        network = build()
        network.load_state_dict(weights)
        return network.train(model.training)

    def reader(self, model: nn.Module, optimizer: torch.optim.Optimizer, /) -> Reader:
        """Return a reader for this rank's part of a checkpoint."""
        parameters = _parameters(optimizer)
        weights: dict[str, Tensor] = model.state_dict()

        def wanted(kind: Kind, name: str, rows: int) -> range:
            is_weight = kind == "weights"
            tensor = weights.get(name) if is_weight else _parameter_of(name, parameters)
            if not isinstance(tensor, DTensor) or tensor.shape[0] != rows:
                return range(rows)
            # Split in the same way as ``torch.chunk``.
            share = -(-rows // self.size)
            return range(min(rows, self.rank * share), min(rows, (self.rank + 1) * share))

        return Reader(number=self.rank, count=self.size, wanted=wanted)

    def restore(
        self, state: TrainingState, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Load the rows in ``state`` into the shards of network and optimizer on this rank."""
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
        """Return rows of the optimizer state as a tensor with the sharding of the parameter."""
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


def _choose(tensors: Tensors, *, sharded: bool) -> Tensors:
    return {
        kind: {
            name: _local(tensor)
            for name, tensor in tensors[kind].items()
            if isinstance(tensor, DTensor) == sharded
        }
        for kind in KINDS
    }


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parameter_of(name: str, parameters: Sequence[Tensor]) -> Tensor | None:
    number, _, _ = name.partition(".")
    # Names are read before the digest is checked, so a damaged file may contain any name.
    known = number.isdecimal() and int(number) < len(parameters)
    return parameters[int(number)] if known else None


def _write(folder: Path, contents: Mapping[str, FileContents]) -> dict[str, JsonValue]:
    if not folder.is_dir():
        raise ResourceError(
            f"{folder} does not exist: checkpoints of a sharded network need a disk that all "
            "processes share"
        )
    entries = write_checked(folder, contents)
    return {name: [entry.size, entry.sha256] for name, entry in entries.items()}


def _collect(folder: Path, answers: Sequence[Mapping[str, Any]]) -> dict[str, FileEntry]:
    """Return the entries of all ranks' files, after checking that the files exist here."""
    entries: dict[str, FileEntry] = {}
    for answer in answers:
        for name, (size, sha256) in answer.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size:
                raise ResourceError(
                    f"{path} is missing or incomplete on the disk of rank 0: checkpoints of a "
                    "sharded network need a disk that all processes share"
                )
            entries[name] = FileEntry(size=size, sha256=sha256)
    return entries
