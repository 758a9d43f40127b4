"""Errors with exit codes.

The command line prints the message (what failed, which file, what to do) and exits with the code;
a traceback is a bug.
"""

from collections.abc import Mapping


class QkvaryError(Exception):
    """An error that the user can act on."""

    exit_code: int = 1


class UsageError(QkvaryError, ValueError):
    """The input is invalid: a name, a value, or a changed configuration."""

    exit_code = 2


class MisfitError(UsageError):
    """A task, its configuration and its network do not fit, so no run of them can begin."""


class SystemNotSupportedError(UsageError, ImportError):
    """The system lacks the locks, users and limits of POSIX."""


class DamagedError(QkvaryError):
    """Stored data is missing or changed."""

    exit_code = 3


class NewerFormatError(QkvaryError):
    """Stored data was written by a newer qkvary."""

    exit_code = 3


class NoValidCheckpointError(DamagedError):
    """All checkpoints are damaged."""


class ResourceError(QkvaryError):
    """The disk is full, a folder is not writable, or memory ran out."""

    exit_code = 4


class TargetError(ResourceError, UsageError):
    """A path cannot be written: a file is in the place of a folder, or permissions are missing."""

    exit_code = 2


class DivergedError(QkvaryError):
    """A loss or gradient is not finite."""

    exit_code = 5


class StoppedError(QkvaryError):
    """A signal stopped the work, usually after a checkpoint."""

    def __init__(
        self, number: int, message: str = "stopped; the same command resumes where it stopped"
    ) -> None:
        self.exit_code = 128 + number
        super().__init__(message)


class EndedEarlyError(QkvaryError):
    """A signal or an error ended a study early; ``document`` counts its finished runs."""

    def __init__(self, message: str, exit_code: int, document: Mapping[str, object]) -> None:
        self.exit_code, self.document = exit_code, document
        super().__init__(message)


class BusyError(QkvaryError):
    """Another process owns the folder; the message names the owner."""

    exit_code = 6


class UnsafeError(QkvaryError):
    """Unsafe input was refused, such as a path that leaves its folder."""

    exit_code = 7
