"""The ways to decode, imported when one is asked for: a command line is read without torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qkvary.inference.beams import Beam
    from qkvary.inference.cache_quality import Measured
    from qkvary.inference.requests import Event


def load_stream() -> Callable[..., Iterator[Event]]:
    """``decoding.stream``: one token after the other."""
    return cast("Callable[..., Iterator[Event]]", import_module("qkvary.inference.decoding").stream)


def load_search() -> Callable[..., list[Beam]]:
    """``beams.search``: several continuations at a time."""
    return cast("Callable[..., list[Beam]]", import_module("qkvary.inference.beams").search)


def load_measure_text() -> Callable[..., Iterator[Measured]]:
    """``cache_quality.measure_text``: what rounding the cache costs on a text."""
    module = import_module("qkvary.inference.cache_quality")
    return cast("Callable[..., Iterator[Measured]]", module.measure_text)
