"""Builds a shared library from C++ with the compiler of the machine, once for each machine.

A library is named after everything that it depends on: sources, flags, the compiler's version and
the processor's instruction sets. Nothing is built at import. It is not an error if the machine has
no compiler or the folder cannot be written.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path

from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import cache_directory, cpu_field
from qkvary.storage.errors import ResourceError
from qkvary.storage.posix import fcntl

COMPILERS = ("g++", "clang++", "c++")
TIMEOUT_SECONDS = 600.0
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-w")
NATIVE = ("-march=native", "-mcpu=native", "")
"""Compiler options for the processor of this machine, tried in order until one is accepted."""


class BuildError(RuntimeError):
    """Raised if there is a compiler but it does not build the source."""


@functools.cache
def find_compiler() -> str | None:
    """Return the C++ compiler: ``$CXX`` if it exists, else the first compiler found, or None."""
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        found = shutil.which(name) if name else None
        if found is not None:
            return found
    return None


def kept_folder() -> Path | None:
    """Return the folder ``decoding`` of the cache directory; None if there is no such directory."""
    folder = cache_directory()
    return None if folder is None else folder / "decoding"


def build(sources: Sequence[Path]) -> Path | None:
    """Build the library of ``sources`` unless it was built before; return its path.

    Only the first source is compiled; it includes the others. Returns None if there is no compiler
    or no folder to write to.
    """
    compiler, path = find_compiler(), _path(sources)
    if compiler is None or path is None or path.exists():
        return path
    try:
        make_directory(path.parent)
        with _one_at_a_time(path.parent):
            # Another process may have built it meanwhile.
            if not path.exists():
                atomic_write_file(path, _compile(compiler, sources[0]))
    except (OSError, ResourceError):
        return None
    return path


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Generator[None]:
    """Lock a folder until the ``with`` block ends, if its file system supports locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def will_build(sources: Sequence[Path]) -> bool:
    """Return whether ``load`` would first have to compile the library. Compiling is slow."""
    path = _path(sources)
    return find_compiler() is not None and (path is None or not path.exists())


def _path(sources: Sequence[Path]) -> Path | None:
    """Return the path of the library, or ``None`` if it cannot be built or stored."""
    compiler, folder = find_compiler(), kept_folder()
    if compiler is None or folder is None:
        return None
    return folder / f"{sources[0].stem}-{_fingerprint(compiler, sources)}.so"


def load(sources: Sequence[Path]) -> ctypes.CDLL | None:
    """Build and load a library. If that fails, report it once and return ``None``.

    If the library cannot be stored, it is built for this process alone.
    """
    compiler = find_compiler()
    if compiler is None:
        return None
    try:
        library = build(sources)
        if library is not None:
            return ctypes.CDLL(str(library))
        # A loaded library stays loaded when its file is removed, on systems that allow it.
        with tempfile.TemporaryDirectory(prefix="qkvary-", ignore_cleanup_errors=True) as room:
            made = Path(room) / f"{sources[0].stem}.so"
            made.write_bytes(_compile(compiler, sources[0]))
            return ctypes.CDLL(str(made))
    except (BuildError, OSError) as error:
        warnings.warn(f"decoding runs without its native kernel: {error}", stacklevel=2)
        return None


def _compile(compiler: str, source: Path) -> bytes:
    """Return the library of a source."""
    said = ""
    with tempfile.TemporaryDirectory(prefix="qkvary-") as room:
        target = Path(room) / "library.so"
        for native in NATIVE:
            flags = [flag for flag in (*FLAGS, native) if flag]
            try:
                done = _run(compiler, *flags, str(source), "-o", str(target))
            except subprocess.SubprocessError as error:
                raise BuildError(f"{compiler} did not finish: {error}") from error
            if done.returncode == 0:
                return target.read_bytes()
            said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
            # Only a compiler that refuses the flag gets another try; otherwise the source would
            # fail again.
            if native.split("=")[0] not in done.stderr:
                break
    raise BuildError(f"{compiler} says {said.strip()[:200]!r}")


def _fingerprint(compiler: str, sources: Sequence[Path]) -> str:
    try:
        version = _run(compiler, "--version").stdout
    except (OSError, subprocess.SubprocessError):
        version = ""
    processor = [cpu_field(name) for name in ("model name", "flags", "Features")]
    system = (platform.system(), platform.machine(), platform.processor())
    parts = [*FLAGS, *NATIVE, compiler, version, *system, *processor]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:24]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
