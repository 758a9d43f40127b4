"""Worker processes as an executor: each future has the end of its own call."""

import os
import signal
import time
from concurrent.futures import CancelledError

import pytest

from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors.local import LocalExecutor, WorkerDiedError


def work(name: str) -> str:
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "raises":
        raise UsageError("expected another name")
    if name == "prints":
        os.write(1, b"a library prints to standard output\n")
    if name == "stays":
        time.sleep(60)
    return name


def test_a_death_ends_one_future() -> None:
    names = ("a", "dies", "b", "raises", "prints", "dies", "c")
    with LocalExecutor(2) as executor:
        futures = [executor.submit(work, name) for name in names]
        ends = [future.exception(timeout=60) or future.result() for future in futures]
    assert [end if isinstance(end, str) else type(end) for end in ends] == [
        "a",
        WorkerDiedError,
        "b",
        UsageError,
        "prints",
        WorkerDiedError,
        "c",
    ]
    assert "signal SIGKILL" in str(ends[1])


def test_a_worker_that_is_terminated_is_replaced() -> None:
    with LocalExecutor(1) as executor:
        (worker,) = {executor.submit(os.getpid).result(timeout=60)}
        os.kill(worker, signal.SIGTERM)
        time.sleep(0.3)
        assert executor.submit(os.getpid).result(timeout=60) != worker


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_calls_that_wait_are_dropped(how: str) -> None:
    executor = LocalExecutor(1)
    first, second = (executor.submit(work, "stays") for _ in range(2))
    while not first.running():
        time.sleep(0.01)
    time.sleep(0.3)
    getattr(executor, how)()
    assert isinstance(first.exception(timeout=60), WorkerDiedError)
    with pytest.raises(CancelledError):
        second.result(timeout=60)
    executor.shutdown()
