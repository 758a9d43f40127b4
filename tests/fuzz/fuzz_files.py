"""Opens mutated files of every kind: each loads, or is refused in a sentence within seconds.

``python -m tests.fuzz.fuzz_files [KIND ...] [--count 1000] [--first 0]`` prints seeds that fail.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from qkvary.storage.errors import QkvaryError
from tests.fuzz.formats import FORMATS, Format

SECONDS = 10
"""The most processor time of one file; the parsers of others have half of it."""
REFUSED = (2, 3, 4, 7)
"""Exit codes of a refusal: bad input, damaged, too large for the memory, unsafe."""


class TooSlowError(BaseException):
    """A file takes too long."""


def _stop(_number: int, _frame: object) -> None:
    raise TooSlowError


def judge(kind: Format, file: Path) -> str:
    """Open a file and return what happened; a failure begins with FAILED."""
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # What a stored tensor contradicts is named.
            warnings.filterwarnings("ignore", ".*(head is used|configuration contradicts)")
            kind.open(file)
    except QkvaryError as error:
        return _judge_message(error, error.exit_code)
    except ValueError as error:
        return _judge_message(error, 2)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        lines = traceback.format_exc().splitlines(keepends=True)
        return f"FAILED {type(error).__name__}: {''.join(lines[-8:])}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "loads"


def _judge_message(error: Exception, code: int) -> str:
    message = str(error)
    if code not in REFUSED or not message or "this is a bug" in message:
        return f"FAILED code {code}: {message!r}"
    return f"code {code}"


def try_seeds(name: str, seeds: range, folder: Path) -> dict[int, str]:
    """Return what happened to each mutation of a kind of file."""
    kind = FORMATS[name]
    pristine = kind.make(folder)
    valid = pristine.read_bytes()
    others = {path: path.read_bytes() for path in pristine.parent.iterdir() if path.is_file()}
    assert name == "published config" or judge(kind, pristine) == "loads", name
    found: dict[int, str] = {}
    for seed in seeds:
        pristine.write_bytes(kind.change(valid, random.Random(f"{name} {seed}")))
        kind.sign(pristine)
        found[seed] = judge(kind, pristine)
        for path, data in others.items():
            path.write_bytes(data)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=list(FORMATS))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    failures = 0
    for name in given.kinds or FORMATS:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            seeds = range(given.first, given.first + given.count)
            found = try_seeds(name, seeds, Path(folder))
        failed = {seed: text for seed, text in found.items() if text.startswith("FAILED")}
        failures += len(failed)
        counted = Counter(text.split(":")[0] for text in found.values())
        print(f"{name}: {dict(counted)} in {time.perf_counter() - start:.0f} s", flush=True)
        for text in dict.fromkeys(failed.values()):
            print(f"  seeds {[seed for seed, one in failed.items() if one == text][:9]} {text}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
