"""Builds a shared library from C++ with the compiler of the machine, once for each machine.

A library is named after everything that it depends on: sources, flags, the compiler's version and
the processor's instruction sets. Nothing is built at import, and a machine without a compiler is
normal.

Libraries are kept between runs, and can be built again: an unreadable one counts as missing, and a
failed write is ignored. Files are renamed into place but not synced to disk, since their digests
are verified.
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

from qkvary.storage.environment import cache_directory
from qkvary.storage.posix import fcntl

COMPILERS = ("g++", "clang++", "c++")
TIMEOUT_SECONDS = 600.0
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-w")
NATIVE = ("-march=native", "-mcpu=native", "")
"""Compiler options for the processor of this machine; not all compilers know both."""


class BuildError(RuntimeError):
    """There is a compiler, but it does not build the source."""


@functools.cache
def find_compiler() -> str | None:
    """Return the C++ compiler: ``$CXX`` if it exists, else the first one found, or None."""
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        found = shutil.which(name) if name else None
        if found is not None:
            return found
    return None


def kept_folder() -> Path | None:
    """Return the folder ``decoding`` of the cache directory; None if there is no such directory."""
    folder = cache_directory()
    return None if folder is None else folder / "decoding"


def can_keep() -> bool:
    """Try to write to the folder for libraries, and return whether that works."""
    folder = kept_folder()
    if folder is None:
        return False
    try:
        with _temporary(folder):
            return True
    except OSError:
        return False


def build(sources: Sequence[Path]) -> Path | None:
    """Build the library of ``sources`` unless it was built before; return its path.

    Only the first source is compiled; it includes the others. Returns None if there is no compiler
    or no folder to write to.
    """
    compiler, path = find_compiler(), _path(sources)
    if compiler is None or path is None or _is_whole(path):
        return path
    with _one_at_a_time(path.parent):
        # Another process may have built it meanwhile.
        return path if _is_whole(path) else _build(compiler, sources[0], path)


def _build(compiler: str, source: Path, library: Path) -> Path | None:
    """Build a library and its digest file; return None if their folder cannot be written."""
    try:
        with _temporary(library.parent) as room:
            made, seal = room / library.name, room / "seal"
            _compile(compiler, source, made)
            seal.write_text(_digest(made), "utf-8")
            made.replace(library)
            seal.replace(_seal(library))
    except OSError:
        return None
    return library


@contextlib.contextmanager
def _temporary(folder: Path) -> Generator[Path]:
    """Make a directory in a folder, in the same file system, and remove it afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as room:
        yield Path(room)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Generator[None]:
    """Lock a folder against other processes during the block; without a lock if that fails."""
    descriptor = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        pass
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def will_build(sources: Sequence[Path]) -> bool:
    """Return whether ``load`` would have to compile first, which is slow."""
    path = _path(sources)
    return find_compiler() is not None and (path is None or not _is_whole(path))


def _path(sources: Sequence[Path]) -> Path | None:
    """Return the path of the library, or ``None`` if it cannot be built or stored."""
    compiler, folder = find_compiler(), kept_folder()
    if compiler is None or folder is None:
        return None
    return folder / f"{sources[0].stem}-{_fingerprint(compiler, sources)}.so"


def _seal(library: Path) -> Path:
    """Return the path of the file that holds a library's digest.

    The digest shows whether a library is complete. Loading a truncated library would crash.
    """
    return library.with_name(f"{library.name}.sha256")


def _is_whole(library: Path) -> bool:
    try:
        return _seal(library).read_text("utf-8") == _digest(library)
    except (OSError, ValueError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load(sources: Sequence[Path]) -> ctypes.CDLL | None:
    """Build and load a library; after a failure, which is reported once, return ``None``.

    If the library cannot be stored, it is built for this process alone.
    """
    try:
        library = build(sources)
        if library is not None:
            return ctypes.CDLL(str(library))
        compiler = find_compiler()
        if compiler is None:
            return None
        # A loaded library stays loaded when its file is removed, on systems that allow it.
        with tempfile.TemporaryDirectory(prefix="qkvary-", ignore_cleanup_errors=True) as room:
            made = Path(room) / f"{sources[0].stem}.so"
            _compile(compiler, sources[0], made)
            return ctypes.CDLL(str(made))
    except (BuildError, OSError) as error:
        warnings.warn(f"decoding runs without its native kernel: {error}", stacklevel=2)
        return None


def _compile(compiler: str, source: Path, target: Path) -> None:
    said = ""
    for native in NATIVE:
        flags = [flag for flag in (*FLAGS, native) if flag]
        try:
            done = _run(compiler, *flags, str(source), "-o", str(target))
        except subprocess.SubprocessError as error:
            raise BuildError(f"{compiler} does not finish: {error}") from error
        if done.returncode == 0:
            return
        # Only a compiler that refuses the flag gets another try; otherwise the source would fail
        # again.
        is_refused = native.split("=")[0] in done.stderr
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        if not is_refused:
            break
    raise BuildError(f"{compiler} says {said.strip()[:200]!r}")


def _fingerprint(compiler: str, sources: Sequence[Path]) -> str:
    try:
        version = _run(compiler, "--version").stdout
    except (OSError, subprocess.SubprocessError):
        version = ""
    parts = [*FLAGS, *NATIVE, compiler, version, *_describe_processor()]
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


@functools.cache
def _describe_processor() -> tuple[str, ...]:
    """Return the kind of the processor and, if known, its name and instruction sets."""
    facts = [platform.system(), platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for name in ("model name", "flags", "Features"):
        facts += [line for line in lines if line.split(":")[0].strip() == name][:1]
    return tuple(facts)
