"""The choice of a decoding kernel: by rule, by timing if asked for, or pinned.

``auto`` depends on the device, types and shapes of a call, so results do not depend on a
measurement. ``fastest`` has no rules: it times every kernel that supports the call, once for each
machine and kind of call. These choices are stored next to the built kernels; an unreadable file is
ignored.
"""

import functools
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkvary.nn.decoding import folded, native, triton_attention
from qkvary.nn.decoding.build import describe_processor
from qkvary.nn.decoding.kept import keep_text, kept_folder
from qkvary.nn.decoding.problem import Decoding

VARIABLE = "QKVARY_DECODE_KERNEL"
"""The environment variable that fixes what ``auto`` chooses."""

FILE_NAME = "choices.json"
FORMAT = 2
ROUNDS = 3
TURN_SECONDS = 2e-4
HOPELESS = 4.0
"""A kernel whose first call takes this many times as long as the best is not timed again."""

KERNELS: Mapping[str, Callable[[Decoding], Tensor]] = {
    **folded.FORMS,
    "compiled": folded.attend_compiled,
    "native": native.attend_native,
    "triton": triton_attention.attend_triton,
}
"""The kernels by name."""

_IS_FINE = time.get_clock_info("thread_time").resolution < TURN_SECONDS / 20
"""Whether the thread clock is precise enough to time a turn."""

LAYER = "layer"
"""The name of the layer's own computation, which is not in ``KERNELS``."""

Kind = tuple[tuple[str, object], ...]

_by_kind: dict[Kind, str] = {}
_chosen: dict[str, str] = {}
_started: dict[Kind, bool] = {}
_read: set[Path] = set()


def chosen() -> dict[str, str]:
    """Return the chosen kernel for every kind of call that was timed here or stored."""
    return dict(_chosen)


def forget() -> None:
    """Make the next call read the stored choices, or time again."""
    _by_kind.clear()
    _chosen.clear()
    _started.clear()
    _read.clear()


def _is_usable(name: str, problem: Decoding) -> bool:
    """Return whether a kernel supports a call without interpreting GPU code on the CPU."""
    is_interpreted = name == "triton" and triton_attention.is_interpreted()
    return not is_interpreted and _supports(name, problem)


def _supports(name: str, problem: Decoding) -> bool:
    if name == "native":
        return native.supports(problem) and native.library() is not None
    if name == "compiled":
        return folded.can_compile(problem)
    return name in folded.FORMS or triton_attention.supports(problem)


def choose(problem: Decoding, kernel: str = "auto") -> str:
    """Return the name of the kernel for a call.

    ``auto`` leaves it to the environment or to the rule, ``fastest`` to a timing, and any other
    name pins it. What a pinned kernel does not support goes to ``folded``.
    """
    name = pinned(kernel)
    if name == LAYER:
        # The layer's own computation is not among these kernels.
        name = "auto"
    if name == "auto":
        return _prefer(problem)
    if name in folded.FORMS:
        return name
    if name != "fastest":
        return name if _supports(name, problem) else "folded"
    kind = kind_of(problem)
    if kind not in _by_kind:
        names = [name for name in KERNELS if _is_usable(name, problem)]
        if "native" in names and "compiled" in names:
            # Compiling takes longer than most runs decode; it is for machines without the native
            # kernel.
            names.remove("compiled")
        _by_kind[kind] = choose_once(describe(kind), names, lambda: fastest(problem, names))
    return _by_kind[kind]


def _prefer(problem: Decoding) -> str:
    """Return the kernel of ``auto``: the one made for the device, or ``folded``."""
    if _is_usable("native", problem):
        return "native"
    if not _is_usable("triton", problem):
        return "folded"
    kind = kind_of(problem)
    if kind not in _started:
        # A kernel that cannot be built is reported once, and skipped from then on.
        _started[kind] = _starts(problem, "triton")
    return "triton" if _started[kind] else "folded"


def pinned(kernel: str) -> str:
    """Return the kernel's name; for ``auto`` the environment may name another."""
    name = kernel if kernel != "auto" else os.environ.get(VARIABLE) or "auto"
    if name not in KERNELS and name not in ("auto", "fastest", LAYER):
        choices = ", ".join(("auto", "fastest", LAYER, *KERNELS))
        place = f" in {VARIABLE}" if kernel == "auto" else ""
        raise ValueError(f"expected a kernel for decoding{place}, got {name!r}; choices: {choices}")
    return name


def choose_once(kind: str, names: Sequence[str], measure: Callable[[], str]) -> str:
    """Return the stored choice among names for a kind of call here, or measure and store one."""
    folder = kept_folder()
    if folder is not None and folder not in _read:
        _read.add(folder)
        for known, name in _kept(folder).items():
            _chosen.setdefault(known, name)
    if _chosen.get(kind) not in names:
        _chosen[kind] = measure()
        if folder is not None:
            # Other processes may have written choices meanwhile; overwritten ones are timed again.
            choices = {**_kept(folder), **_chosen}
            found = {"format": FORMAT, "machine": _machine(), "choices": choices}
            keep_text(FILE_NAME, json.dumps(found, indent=1, sort_keys=True) + "\n")
    return _chosen[kind]


def kind_of(problem: Decoding) -> Kind:
    """Return the kind of a call, with lengths, batches and queries rounded to powers of two."""
    batch, heads, queries, dim = problem.query.shape
    kv_heads, keys = problem.key.shape[1:3]
    return (
        ("device", describe_device(problem.key.device)),
        ("query", problem.query.dtype),
        ("heads", heads),
        ("kv", kv_heads),
        ("width", dim),
        ("value width", problem.value.shape[-1]),
        ("shared", problem.is_shared),
        ("keys", _bucket(keys)),
        ("batch", _bucket(batch)),
        ("queries", _bucket(queries)),
        ("threads", torch.get_num_threads()),
        ("padding", problem.valid is not None),
        ("bias", problem.bias is not None),
    )


def describe(kind: Kind) -> str:
    """Return a kind of call as the file of choices names it."""
    return ", ".join(f"{name} {str(part).removeprefix('torch.')}" for name, part in kind)


def fastest(problem: Decoding, names: list[str]) -> str:
    """Time kernels on a call, in turns; the shortest time of each counts."""
    names = [name for name in names if _starts(problem, name)]
    first = {name: _time(problem, name, 1) for name in names}
    best = min(first.values())
    hopeful = [name for name in names if first[name] <= HOPELESS * best]
    times = {name: first[name] for name in hopeful}
    for _ in range(ROUNDS):
        for name in hopeful:
            repeats = max(1, round(TURN_SECONDS / max(first[name], 1e-6)))
            times[name] = min(times[name], _time(problem, name, repeats))
    return min(times, key=lambda name: times[name])


def _starts(problem: Decoding, name: str) -> bool:
    """Return whether a kernel completes a first call, which may compile and is not timed."""
    try:
        KERNELS[name](problem)
    except RuntimeError as error:
        warnings.warn(f"decoding goes without its kernel {name!r}: {error}", stacklevel=2)
        return False
    return True


def _time(problem: Decoding, name: str, repeats: int) -> float:
    kernel = KERNELS[name]
    start = read_clock(problem.key.device)
    for _ in range(repeats):
        kernel(problem)
    return (read_clock(problem.key.device) - start) / repeats


def read_clock(device: torch.device) -> float:
    """Return a clock in seconds that, where possible, counts only the work of this process."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "cpu" and torch.get_num_threads() == 1 and _IS_FINE:
        return time.thread_time()
    return time.perf_counter()


@functools.cache
def describe_device(device: torch.device) -> str:
    """Return the name of a GPU, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _bucket(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _machine() -> str:
    """Return a digest of what timings depend on: the processor, torch and the kernels."""
    parts = [torch.__version__, *describe_processor()]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in (*native.SOURCES, *triton_attention.SOURCES):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:24]


def _kept(folder: Path) -> dict[str, str]:
    try:
        found: Any = json.loads((folder / FILE_NAME).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return {}
    entries = found.get("choices")
    if found.get("machine") != _machine() or not isinstance(entries, dict):
        return {}
    return {kind: name for kind, name in entries.items() if isinstance(name, str)}
