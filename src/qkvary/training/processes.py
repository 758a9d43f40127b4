"""The process group that torchrun starts, and its collective operations on numbers and JSON.

All ranks must make the same calls in the same order. Independent of networks and checkpoints.
"""

import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from qkvary.storage import errors
from qkvary.storage.errors import QkvaryError, ResourceError, UsageError
from qkvary.storage.jsonvalues import JsonValue, decode, encode

TIMEOUT_SECONDS = 600.0
CONNECT_SECONDS = 10.0
"""Timeout in seconds for connecting, after all processes have started."""
GRACE_SECONDS = 20.0
"""Seconds between SIGTERM and a hard exit after the launcher has died."""
POLL_SECONDS = 1.0
"""Seconds between checks that the launcher is alive."""

_LOST = re.compile(r"connect|peer|time[d ]*out|broken pipe", re.IGNORECASE)
"""Pattern of gloo's errors about a lost process. Errors about wrong calls do not match."""
_WHERE = re.compile(r"^\[[^]]*\] *")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """The ranks of a process that torchrun started, and the number of all processes."""

    rank: int
    size: int
    local_rank: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "RankInfo":
        """Read the environment variables of torchrun. Without them, there is a single process."""
        if environment.get("WORLD_SIZE", "1") == "1":
            return cls(rank=0, size=1, local_rank=0)
        try:
            size = int(environment["WORLD_SIZE"])
            rank = int(environment["RANK"])
            local_rank = int(environment.get("LOCAL_RANK", rank))
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"expected RANK and WORLD_SIZE to be numbers, as torchrun sets them, got {error}"
            ) from None
        if not 0 <= rank < size or local_rank < 0:
            raise UsageError(
                f"expected a RANK from 0 to {size - 1} and a LOCAL_RANK of at least 0, got "
                f"{rank} and {local_rank}"
            )
        return cls(rank=rank, size=size, local_rank=local_rank)


class Collectives:
    """Collective operations of the processes of a run."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, added in rank order, so that all ranks get equal bits."""
        mine = torch.tensor(values, dtype=torch.float64)
        return [sum(column) for column in zip(*self._gather(mine).tolist(), strict=True)]

    def all_gather(self, value: JsonValue) -> list[Any]:
        """Return the values of all ranks, in order."""
        data = torch.frombuffer(bytearray(encode(value).encode()), dtype=torch.uint8)
        sizes = self._gather(torch.tensor([len(data)])).flatten().tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        rows = self._gather(padded)
        return [decode(row[:size].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)]

    def run_on_all(self, work: Callable[[], JsonValue]) -> list[Any]:
        """Call ``work`` on every rank and return all results.

        If ``work`` fails on some ranks, every rank raises the error of the lowest of these ranks.
        """
        mine: QkvaryError | None = None
        answer: JsonValue = None
        try:
            answer = work()
        except QkvaryError as error:
            mine = error
        failure: JsonValue = None if mine is None else [type(mine).__name__, str(mine)]
        answers = self.all_gather([answer, failure])
        for rank, (_, problem) in enumerate(answers):
            if mine is not None and rank == self.rank:
                raise mine
            if problem is not None:
                name, message = problem
                kind: Any = getattr(errors, name, QkvaryError)
                raise kind(f"process {rank}: {message}" if rank else message)
        return [answer for answer, _ in answers]

    def _gather(self, mine: Tensor) -> Tensor:
        rows = torch.empty(self.size * len(mine), dtype=mine.dtype)
        dist.all_gather_single(rows, mine)
        return rows.view(self.size, len(mine))


@contextmanager
def connect(
    info: RankInfo, device: str, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> Generator[Collectives]:
    """Initialize the process group, and destroy it when the block ends."""
    kind = torch.device(device).type
    _choose_device(kind, info)
    with _translate_errors():
        with _watch_launcher():
            _initialize(info, kind, timedelta(seconds=timeout_seconds))
            yield Collectives(info.rank, info.size)
            # Keep connections open until no rank reads from them.
            dist.barrier()
        dist.destroy_process_group()


def _initialize(info: RankInfo, kind: str, timeout: timedelta) -> None:
    store, _, _ = next(rendezvous("env://", info.rank, info.size, timeout=timeout))
    names = [f"process {rank} is ready" for rank in range(info.size)]
    store.set(names[info.rank], "")
    store.wait(names, timeout)
    # All processes have started. Gloo waits for each one that has died since, one after the other.
    connecting = timeout if kind == "cuda" else min(timeout, timedelta(seconds=CONNECT_SECONDS))
    dist.init_process_group(
        "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl",
        store=store,
        rank=info.rank,
        world_size=info.size,
        timeout=connecting,
        device_id=None if kind == "cpu" else torch.device(kind, info.local_rank),
    )
    group = dist.group.WORLD
    # Kept alive until the process ends: its destructor joins its threads while holding the GIL, and
    # deadlocks if one of them needs the GIL to free a tensor. Seen with gloo after another process
    # was killed.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    # torch has no public function that changes the timeout of a process group.
    dist.distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _choose_device(kind: str, info: RankInfo) -> None:
    if kind == "cpu":
        return
    if kind != "cuda":
        raise UsageError(f"expected the device cpu or cuda for several processes, got {kind}")
    if info.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"expected a GPU for each process, got local rank {info.local_rank} on a machine with "
            f"{torch.cuda.device_count()} GPUs"
        )
    torch.cuda.set_device(info.local_rank)


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except RuntimeError as error:
        is_lost = "gloo" in str(error) and _LOST.search(str(error))
        if not isinstance(error, dist.DistError) and not is_lost:
            raise
        reason = _WHERE.sub("", str(error).strip()).splitlines()[0].partition(". ")[0]
        raise ResourceError(
            "another process of this run has died or does not respond; start all of them again to "
            f"resume from the newest checkpoint ({reason})"
        ) from error


@contextmanager
def _watch_launcher() -> Generator[None]:
    """End this process when torchrun dies.

    The process first gets SIGTERM, as torchrun sends it, so that the run can write a checkpoint.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    launcher, is_over = os.getppid(), threading.Event()

    def watch() -> None:
        while not is_over.wait(POLL_SECONDS):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(GRACE_SECONDS)
                # The process may hang in a collective call.
                os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
