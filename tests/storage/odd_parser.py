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
        match request:
            case "refuse":
                raise ValueError("not\nthis")
            case "panic":
                raise Panic("a panic")
            case "hang":
                while True:
                    pass
            case "work":
                end = time.process_time() + 1.5
                while time.process_time() < end:
                    pass
                return "done"
            case "wait":
                time.sleep(0.8)
            case "fill":
                return len(bytearray(2**40))
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "leave":
                os._exit(5)
            case "number":
                return os.getpid()
        return [content, request]

    return handle


if __name__ == "__main__":
    serve(load)
