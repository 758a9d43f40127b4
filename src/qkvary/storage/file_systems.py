"""Finds the file system of a folder, and the reach of its locks. Never imports torch."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qkvary.storage.posix import fcntl

LockReach = Literal["all machines", "this machine", "unknown"]

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_SHARED = {"nfs", "nfs4", "lustre", "gpfs", "ceph", "cifs", "smb3", "ocfs2", "gfs2"}
"""Network file systems whose locks work across machines, unless a mount option says otherwise."""
_LOCAL_OPTIONS = {"nolock", "local_lock=flock", "local_lock=all", "localflock", "nobrl"}
"""Mount options that keep locks on one machine."""
_UNKNOWN = {"beegfs", "9p", "virtiofs", "orangefs", "afs"}
_OTHER_PROCESS = """
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1], "rb+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(7)
"""
_REFUSED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """A mounted file system."""

    kind: str
    """The type of the file system, such as ``ext4`` or ``nfs4``."""
    mount: str
    options: frozenset[str]

    @property
    def lock_reach(self) -> LockReach:
        """The machines that a lock on this file system covers."""
        if self.kind in _SHARED:
            return "this machine" if self.options & _LOCAL_OPTIONS else "all machines"
        if self.kind in _UNKNOWN or (self.kind.startswith("fuse.") and self.kind != "fuse.sshfs"):
            return "unknown"
        return "this machine"

    @property
    def lock_problem(self) -> str | None:
        """A warning if a lock might not exclude other machines from a shared folder, else None."""
        if self.kind in _SHARED and self.lock_reach != "all machines":
            option = ", ".join(sorted(self.options & _LOCAL_OPTIONS))
            return (
                f"{self.mount} ({self.kind}) is mounted with {option}: its locks hold on one "
                "machine only, and two machines can execute the same run; mount it without this "
                "option"
            )
        if self.kind == "fuse.sshfs":
            return f"{self.mount} is mounted through ssh: its locks hold on one machine only"
        if self.lock_reach == "unknown":
            return (
                f"it is not known whether locks on {self.mount} ({self.kind}) exclude other "
                "machines: before you rely on them, start the same `qkvary study` on two machines "
                "at the same time, and check that no run is executed twice"
            )
        return None


def find_file_system(path: Path) -> FileSystem | None:
    """Return the file system of an existing path, or None if the system does not say."""
    try:
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    resolved = path.resolve()
    mounts = [one for one in _parse(lines) if resolved.is_relative_to(one.mount)]
    # If two file systems are mounted at one place, the later one hides the earlier.
    return max(reversed(mounts), key=lambda one: len(one.mount), default=None)


def _parse(lines: list[str]) -> Iterator[FileSystem]:
    for line in lines:
        before, _, after = line.partition(" - ")
        place, rest = before.split(), after.split()
        if len(place) < 6 or len(rest) < 2:
            continue
        options = {*place[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ())}
        mount = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), place[4])
        yield FileSystem(kind=rest[0], mount=mount, options=frozenset(options))


def locks_exclude(folder: Path) -> bool:
    """Return whether a lock on a file in an existing folder keeps another process out."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            other = [sys.executable, "-c", _OTHER_PROCESS, file.name]
            done = subprocess.run(other, check=False, capture_output=True, timeout=60)
            return done.returncode == _REFUSED
    except (OSError, subprocess.TimeoutExpired):
        return False
