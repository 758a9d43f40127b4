"""A stand-in for the library of a tracker, which records its calls."""

import sys
from types import ModuleType
from typing import Any


class Recorded(ModuleType):
    """A stand-in for a tracker's library, with the signatures of wandb 0.31 and trackio 0.43."""

    def __init__(
        self, name: str, *, broken: str = "", error: type[BaseException] = ConnectionError
    ) -> None:
        super().__init__(name)
        self.calls: list[tuple[Any, ...]] = []
        self.broken, self.error = broken, error

    def record(self, name: str, *given: Any) -> None:
        sys.stdout.write(f"{name} announces itself\n")
        if name == self.broken:
            raise self.error("no network")
        self.calls.append((name, *given))

    def init(self, project: str, name: str, config: dict[str, Any], **options: Any) -> None:
        self.record("init", project, name, config, options)

    def log(self, data: dict[str, Any], step: int) -> None:
        self.record("log", data, step)

    def finish(self) -> None:
        self.record("finish")
