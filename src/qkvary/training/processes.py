"""Processes that know of each other: what torchrun started, and how they agree.

Every call here is one of all processes, in the same order. What they tell each other are numbers
and JSON. Knows neither networks nor checkpoints.
"""

from __future__ import annotations

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

PATIENCE_SECONDS = 600.0
"""How long a process waits for the others in one call before it gives them up."""
MEETING_SECONDS = 10.0
"""How long processes that are all there have to connect."""
GRACE_SECONDS = 20.0
"""How long a process has to end by itself when what started it is gone."""
WATCH_SECONDS = 1.0
"""Between two looks at whether what started a process is still there."""

_LOST = re.compile(r"connect|peer|time[d ]*out|broken pipe", re.IGNORECASE)
"""What gloo says when another process is gone, and not when it was called wrongly."""
_WHERE = re.compile(r"^\[[^]]*\] *")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a process stands among those that torchrun started."""

    rank: int
    """Its number, counted from 0."""
    size: int
    """How many there are, on all machines."""
    local_rank: int
    """Its number on its own machine."""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Place:
        """Read what torchrun says; one process where it says nothing.

        Raises:
            UsageError: if it says something else than torchrun does.
        """
        if "WORLD_SIZE" not in environment:
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


class Processes:
    """All processes of a run, seen from one of them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def add(self, values: Sequence[float]) -> list[float]:
        """Sum numbers; everybody gets the same bits, because all add in the order of the ranks."""
        mine = torch.tensor(values, dtype=torch.float64)
        return [sum(column) for column in zip(*self._gather(mine).tolist(), strict=True)]

    def exchange(self, value: JsonValue) -> list[Any]:
        """Tell everybody a value; return what each of them told, in the order of the ranks."""
        data = torch.frombuffer(bytearray(encode(value).encode()), dtype=torch.uint8)
        sizes = self._gather(torch.tensor([len(data)])).flatten().tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        rows = self._gather(padded)
        return [decode(row[:size].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)]

    def do(self, work: Callable[[], JsonValue]) -> list[Any]:
        """Let everybody do their work; return what each of them answered.

        Raises:
            QkvaryError: what the first process of those that failed raised, in all of them.
        """
        mine: QkvaryError | None = None
        answer: JsonValue = None
        try:
            answer = work()
        except QkvaryError as error:
            mine = error
        told: JsonValue = None if mine is None else [type(mine).__name__, str(mine)]
        answers = self.exchange([answer, told])
        for rank, (_, problem) in enumerate(answers):
            if problem is not None:
                raise mine if mine is not None and rank == self.rank else self._error(rank, problem)
        return [answer for answer, _ in answers]

    def first(self, work: Callable[[], JsonValue]) -> Any:
        """Let the first process do something; return its answer to all.

        Raises:
            QkvaryError: what it raised, in all of them.
        """
        return self.do(lambda: work() if self.rank == 0 else None)[0]

    def _error(self, rank: int, problem: Sequence[str]) -> QkvaryError:
        name, message = problem
        kind: Any = getattr(errors, name, QkvaryError)
        return kind(f"process {rank}: {message}" if rank else message)

    def _gather(self, mine: Tensor) -> Tensor:
        """The vectors of all processes, one in each row."""
        rows = torch.empty(self.size * len(mine), dtype=mine.dtype)
        dist.all_gather_single(rows, mine)
        return rows.view(self.size, len(mine))


@contextmanager
def joined(
    place: Place, device: str, *, patience_seconds: float = PATIENCE_SECONDS
) -> Generator[Processes]:
    """Meet the other processes of a run, and leave them when the block ends.

    Args:
        place: Where this process stands.
        device: What it computes on; with ``cuda`` it takes the device of its number.
        patience_seconds: How long it waits for others.

    Raises:
        ResourceError: if the others cannot be found, or one of them is lost.
        UsageError: if there is no such device for each process.
    """
    kind = torch.device(device).type
    _choose_device(kind, place)
    with _named_losses():
        with _watched_launcher():
            _meet(place, kind, timedelta(seconds=patience_seconds))
            yield Processes(place.rank, place.size)
            # Nobody closes a connection that another one still reads from.
            dist.barrier()
        dist.destroy_process_group()


def _meet(place: Place, kind: str, patience: timedelta) -> None:
    store, _, _ = next(rendezvous("env://", place.rank, place.size, timeout=patience))
    names = [f"process {rank} is there" for rank in range(place.size)]
    store.set(names[place.rank], "")
    store.wait(names, patience)
    # All are there. Gloo waits for each that died since, one after the other.
    meeting = patience if kind == "cuda" else min(patience, timedelta(seconds=MEETING_SECONDS))
    dist.init_process_group(
        "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl",
        store=store,
        rank=place.rank,
        world_size=place.size,
        timeout=meeting,
        device_id=None if kind == "cpu" else torch.device(kind, place.local_rank),
    )
    group = dist.group.WORLD
    _keep_forever(group)
    dist.distributed_c10d._set_pg_timeout(patience, group)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _keep_forever(group: object) -> None:
    """Let a group live as long as the process.

    Its destructor waits for its threads while it holds the interpreter's lock; a thread that wants
    this lock to give a tensor back then waits for it, for ever. Seen with gloo where another
    process was killed.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _choose_device(kind: str, place: Place) -> None:
    if kind == "cpu":
        return
    if kind != "cuda":
        raise UsageError(f"expected cpu or cuda for several processes, got {kind}")
    if place.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"expected a GPU for each process, got process {place.local_rank} of a machine with "
            f"{torch.cuda.device_count()} of them"
        )
    torch.cuda.set_device(place.local_rank)


@contextmanager
def _named_losses() -> Generator[None]:
    """Turn what torch raises when another process is gone into an error of ours."""
    try:
        yield
    except RuntimeError as error:
        is_lost = "gloo" in str(error) and _LOST.search(str(error))
        if not isinstance(error, dist.DistError) and not is_lost:
            raise
        reason = _WHERE.sub("", str(error).strip()).splitlines()[0].partition(". ")[0]
        raise ResourceError(
            "another process of this run is gone or does not answer; start all of them again, and "
            f"they go on from the newest checkpoint ({reason})"
        ) from error


@contextmanager
def _watched_launcher() -> Generator[None]:
    """End when torchrun is gone: nobody else would end a process that it started.

    First the process is asked to, as by torchrun itself (SIGTERM), so that the run may write a
    checkpoint.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    launcher, is_over = os.getppid(), threading.Event()

    def watch() -> None:
        while not is_over.wait(WATCH_SECONDS):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(GRACE_SECONDS)
                # It may hang in a call to a process that is gone.
                os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
