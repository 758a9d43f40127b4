"""A parser for tests, which does to its process what native code may do."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from qkvary.storage.parser_processes import serve


class Panic(BaseException):
    """As pyo3 raises for a panic of Rust."""


def load(content: str) -> Callable[[Any], Any]:
    if content.startswith("bad"):
        raise ValueError(content)

    def handle(request: Any) -> Any:
        act = ACTS.get(request) if isinstance(request, str) else None
        return [content, request] if act is None else act() or [content, request]

    return handle


def refuse() -> None:
    raise ValueError("not\nthis")


def panic() -> None:
    raise Panic("a panic")


def hang() -> None:
    while True:
        pass


def work() -> str:
    end = time.process_time() + 0.9
    while time.process_time() < end:
        pass
    return "done"


ACTS: dict[str, Callable[[], Any]] = {
    "refuse": refuse,
    "panic": panic,
    "hang": hang,
    "work": work,
    "wait": lambda: time.sleep(0.8),
    "fill": lambda: len(bytearray(2**40)),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "leave": lambda: os._exit(5),
    "number": os.getpid,
}


if __name__ == "__main__":
    serve(load)
