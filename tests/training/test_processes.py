"""The collective operations, with threads in place of processes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from qkvary.storage.errors import DamagedError, ResourceError, UsageError
from qkvary.training.parallel import Replicated
from qkvary.training.processes import Collectives, RankInfo

T = TypeVar("T")


class Threads(Collectives):
    """One of several threads that play processes."""

    def __init__(
        self, rank: int, size: int, meeting: threading.Barrier, said: list[Tensor]
    ) -> None:
        super().__init__(rank, size)
        self.meeting, self.said = meeting, said

    def _gather(self, mine: Tensor) -> Tensor:
        self.said[self.rank] = mine
        self.meeting.wait(10)
        rows = torch.stack(self.said)
        self.meeting.wait(10)
        return rows


def together(size: int, work: Callable[[Collectives], T]) -> list[T]:
    """Let several do something at once; return what each of them got, or raised."""
    meeting, said = threading.Barrier(size), [torch.empty(0)] * size

    def one(rank: int) -> Any:
        try:
            return work(Threads(rank, size, meeting, said))
        except Exception as error:  # noqa: BLE001  an answer as any other
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def test_all_add_in_the_same_order() -> None:
    values = [1e16, 1.0, -1e16, float("inf"), 3.0]

    def work(processes: Collectives) -> list[float]:
        first = processes.all_reduce([values[processes.rank], 1.0])
        return first + processes.all_reduce([float("nan") if processes.rank == 2 else 0.0])

    found = together(3, work)
    assert [sums[:2] for sums in found] == [[(1e16 + 1.0) - 1e16, 3.0]] * 3
    assert all(sums[2] != sums[2] for sums in found)
    assert (
        together(5, lambda processes: processes.all_reduce([values[processes.rank]]))
        == [[float("inf")]] * 5
    )


def test_an_error_of_one_rank_is_raised_on_all() -> None:
    def work(processes: Collectives) -> Any:
        def mine() -> int:
            if processes.rank in (1, 2):
                raise DamagedError(f"file {processes.rank}")
            return processes.rank

        return processes.run_on_all(mine)

    found = together(4, work)
    assert {type(error) for error in found} == {DamagedError}
    messages = [str(error) for error in found]
    assert messages[0] == messages[3] == "process 1: file 1"
    assert messages[1] == "file 1"
    assert (
        together(3, lambda processes: processes.run_on_all(lambda: processes.rank))
        == [[0, 1, 2]] * 3
    )


def test_the_first_does_what_one_can_do() -> None:
    done: list[int] = []

    def work(processes: Collectives) -> Any:
        def mine() -> str:
            done.append(processes.rank)
            return "folder"

        return Replicated(processes, "cpu").run_on_first(mine)

    assert together(3, work) == ["folder"] * 3
    assert done == [0]

    def refuse() -> None:
        raise ResourceError("the disk is full")

    found = together(3, lambda processes: Replicated(processes, "cpu").run_on_first(refuse))
    assert [str(error) for error in found] == ["the disk is full"] * 3
    assert {type(error) for error in found} == {ResourceError}


def test_ranks_are_read_from_the_environment() -> None:
    assert RankInfo.from_environment({}) == RankInfo(rank=0, size=1, local_rank=0)
    assert RankInfo.from_environment(
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    ) == RankInfo(rank=5, size=8, local_rank=1)
    assert RankInfo.from_environment({"RANK": "1", "WORLD_SIZE": "2"}).local_rank == 1


@pytest.mark.parametrize(
    "environment",
    [
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": "two", "RANK": "0"},
        {"WORLD_SIZE": "2", "RANK": "2"},
        {"WORLD_SIZE": "2", "RANK": "-1"},
        {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "-1"},
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="RANK"):
        RankInfo.from_environment(environment)
