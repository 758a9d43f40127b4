"""The ways to decode, imported when one is asked for: a command line is read without torch."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qkvary.inference.beams import Beam
    from qkvary.inference.benchmark.stock_generation import StockModel
    from qkvary.inference.cache_quality import Measured
    from qkvary.inference.requests import Event
    from qkvary.nn.cache import KVCache
    from qkvary.nn.language_model import LanguageModel


def load_stream() -> Callable[..., Iterator[Event]]:
    """``decoding.stream``: one token after the other."""
    return cast("Callable[..., Iterator[Event]]", import_module("qkvary.inference.decoding").stream)


def load_search() -> Callable[..., list[Beam]]:
    """``beams.search``: several continuations at a time."""
    return cast("Callable[..., list[Beam]]", import_module("qkvary.inference.beams").search)


def load_make_cache() -> Callable[..., KVCache]:
    """``decoding.make_cache``: what a batch decodes with."""
    return cast("Callable[..., KVCache]", import_module("qkvary.inference.decoding").make_cache)


def load_build_notice() -> Callable[[], str | None]:
    """``native.notice``: what to say where the first step has to build the native kernels."""
    module = import_module("qkvary.nn.decoding.native")
    return cast("Callable[[], str | None]", module.notice)


def load_pinned() -> Callable[[str], str]:
    """``choice.pinned``: the kernel that is meant, by an option or by the environment."""
    return cast("Callable[[str], str]", import_module("qkvary.nn.decoding.choice").pinned)


def has_transformers() -> bool:
    """Whether the extra ``hf`` is installed."""
    return find_spec("transformers") is not None


def load_stock() -> Callable[[LanguageModel], StockModel]:
    """``stock_generation.StockModel``: the same weights in transformers."""
    module = import_module("qkvary.inference.benchmark.stock_generation")
    return cast("Callable[[LanguageModel], StockModel]", module.StockModel)


def load_measure_text() -> Callable[..., Iterator[Measured]]:
    """``cache_quality.measure_text``: what rounding the cache costs on a text."""
    module = import_module("qkvary.inference.cache_quality")
    return cast("Callable[..., Iterator[Measured]]", module.measure_text)
