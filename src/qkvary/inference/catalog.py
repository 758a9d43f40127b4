"""The ways to decode, imported when one is asked for: a command line is read without torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qkvary.inference.beams import Beam
    from qkvary.inference.requests import Event


def load_stream() -> Callable[..., Iterator[Event]]:
    """``decoding.stream``: one token after the other."""
    return cast("Callable[..., Iterator[Event]]", import_module("qkvary.inference.decoding").stream)


def load_search() -> Callable[..., list[Beam]]:
    """``beams.search``: several continuations at a time."""
    return cast("Callable[..., list[Beam]]", import_module("qkvary.inference.beams").search)
