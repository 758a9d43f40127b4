"""Proof of power: seeded mistakes, each of which a default test must notice.

    python tests/mutants/run.py [NAME ...] [--room ROOM] [--search]

A mistake (``mistakes/*.toml``) replaces one stretch of one file of a copy of the sources; then the
test that is said to kill it runs against the copy. Exits with 1 where a mistake survives, where a
test fails without any mistake too, and where something else than a test fails.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[2]
MISTAKES = Path(__file__).parent / "mistakes"
# What takes seconds to import and is no part of the package.
SLOW_IMPORTS = ("torch._dynamo", "scipy.optimize", "scipy.stats", "rich")
# Plugins are rewritten for their assertions, and here they are imported before.
OPTIONS = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
NOT_THE_TEST = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One entry of the list."""

    name: str
    """The mistake in words."""
    file: str
    """Its file, relative to ``src/qkvary``."""
    old: str
    """The correct text, which occurs exactly once in the file."""
    new: str
    """The wrong text."""
    killed_by: str | None = None
    """The test that notices, as pytest names it; none to search for one."""

    @property
    def room(self) -> str:
        """The room, whose tests should fail."""
        return self.file.partition("/")[0]

    @property
    def mirrored(self) -> str:
        """The file of tests that mirrors the source."""
        path = Path("tests", self.file)
        return str(path.with_name(f"test_{path.name}"))


@dataclass(eq=False, slots=True)
class Watch:
    """The outcome of a run of pytest, recorded by a plugin."""

    failed: list[str] = field(default_factory=list[str])
    """Tests that failed."""
    broken: list[str] = field(default_factory=list[str])
    """Failures outside tests: imports, collections, fixtures."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell a test that fails from one that cannot run."""
        crash = getattr(report.longrepr, "reprcrash", None)
        message = "" if crash is None else crash.message
        if report.failed and (report.when != "call" or message.startswith(NOT_THE_TEST)):
            self.broken.append(f"{report.nodeid}: {message.partition(chr(10))[0]}")
        elif report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what cannot be collected."""
        if report.failed:
            self.broken.append(f"{report.nodeid} cannot be collected")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Check that the tests imported the copy."""
        import qkvary

        if not Path(str(qkvary.__file__)).is_relative_to(session.config.rootpath):
            self.broken.append(f"{qkvary.__file__} was tested")


class SourceCopy:
    """A copy of the repository, in which tests run by forks of this process."""

    def __init__(self, folder: Path) -> None:
        """Copy what git knows into an empty folder, and import what is slow once."""
        self.folder = folder / "copy"
        scratch = folder / "scratch"
        scratch.mkdir()
        # Another pytest on this machine tidies the usual place for folders of tests meanwhile.
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(scratch)
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        os.chdir(self.folder)
        os.environ["PYTHONPATH"] = str(self.folder / "src")
        # An installed package, or this file's folder, must not come before the copy.
        sys.path[:0] = [str(self.folder / "src"), str(self.folder)]
        with _silence():
            # Brings the plugins, and tests/conftest.py, which comes before the libraries: it sets
            # what they read from the environment when they are imported.
            pytest.main([*OPTIONS, "--markers", "tests"])
        for name in SLOW_IMPORTS:
            importlib.import_module(name)
        # An example that fails is enough; to find the smallest one takes minutes.
        hypothesis.settings.register_profile(
            "no shrinking",
            hypothesis.settings.get_profile("repeatable"),
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.load_profile("no shrinking")
        # What is there now need not be looked through in every fork.
        gc.freeze()
        assert "tests.conftest" in sys.modules, "expected the settings of the tests"
        assert "qkvary" not in sys.modules, "expected nothing of the package to be imported yet"

    def test(self, *paths: str, first: bool = True) -> Watch:
        """Run tests, by default up to the first that fails."""
        here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
        work = (there, [*paths, *(["-x"] if first else [])])
        process = multiprocessing.get_context("fork").Process(target=_test, args=work)
        process.start()
        there.close()
        try:
            return here.recv()
        except EOFError:
            return Watch(broken=["the process died"])
        finally:
            process.join()

    def source(self, mistake: Mistake) -> Path:
        """The file that a mistake is made in."""
        return self.folder / "src/qkvary" / mistake.file

    @contextlib.contextmanager
    def patched(self, mistake: Mistake) -> Iterator[None]:
        """Make a mistake, and take it back."""
        path = self.source(mistake)
        source = path.read_text("utf-8")
        _replace(path, source.replace(mistake.old, mistake.new))
        try:
            yield
        finally:
            _replace(path, source)


def _replace(path: Path, source: str) -> None:
    path.write_text(source, "utf-8")
    # What was compiled is told from its source by size and time, which may be those of another one.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _test(pipe: Connection, arguments: Sequence[str]) -> None:
    watch = Watch()
    with _silence():
        code = pytest.main([*OPTIONS, *arguments], plugins=[watch])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not watch.broken:
        watch.broken.append(f"pytest ended with {code!r}")
    pipe.send(watch)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        kept = os.dup(1), os.dup(2)
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)


def read_mistakes() -> list[Mistake]:
    """Return all mistakes, in the order of their files."""
    tables: list[dict[str, Any]] = []
    for path in sorted(MISTAKES.glob("*.toml")):
        tables += tomllib.loads(path.read_text("utf-8"))["mistake"]
    mistakes = [Mistake(**table) for table in tables]
    assert len({one.name for one in mistakes}) == len(mistakes), "expected names of their own"
    return mistakes


def attack(copy: SourceCopy, mistake: Mistake, *, search: bool) -> tuple[str | None, str]:
    """Return the test that fails with a mistake, or None, and a line for the terminal."""
    path = copy.source(mistake)
    found = path.read_text("utf-8").count(mistake.old) if path.exists() else 0
    if found != 1:
        return None, f"BROKEN its text stands {found} times in {mistake.file}"
    known = mistake.killed_by
    if search or known is None:
        scopes = [mistake.mirrored, f"tests/{mistake.room}", "tests/contracts"]
        scopes = [scope for scope in scopes if (copy.folder / scope).exists()]
    else:
        scopes = [known]
    with copy.patched(mistake):
        for scope in scopes:
            watch = copy.test(scope)
            if watch.broken:
                return None, f"BROKEN {scope}: {watch.broken[0]}"
            if watch.failed:
                return watch.failed[0], watch.failed[0]
    return None, f"SURVIVES {' '.join(scopes)}"


def main() -> int:
    """Make every mistake in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mistakes; all by default")
    parser.add_argument("--room", help="mistakes of one room only")
    parser.add_argument("--search", action="store_true", help="look for the tests that kill")
    asked = parser.parse_args()
    mistakes = [
        one
        for one in read_mistakes()
        if one.room == (asked.room or one.room) and (not asked.names or one.name in asked.names)
    ]
    if missing := set(asked.names) - {one.name for one in mistakes}:
        parser.error(f"expected names of the list, got {', '.join(sorted(missing))}")
    failures: list[str] = []
    killers: set[str] = set()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="qkvary-mutants-") as folder:
        copy = SourceCopy(Path(folder).resolve())
        for mistake in mistakes:
            start = time.monotonic()
            killer, text = attack(copy, mistake, search=asked.search)
            if killer is None:
                failures.append(f"{mistake.name}: {text}")
            else:
                killers.add(killer)
            seconds = time.monotonic() - start
            print(f"{mistake.name:50} {mistake.room:12} {seconds:6.1f} s  {text}", flush=True)
        # A process of its own for each file: after one with a fake device, no process can be forked
        # that trains.
        for _, tests in groupby(sorted(killers), key=lambda one: one.partition("::")[0]):
            watch = copy.test(*tests, first=False)
            failures += [f"{one}: fails without a mistake" for one in watch.failed + watch.broken]
        os.chdir(ROOT)
    print(f"{len(mistakes)} mistakes in {time.monotonic() - began:.0f} s, {len(killers)} tests")
    print("\n".join(failures) if failures else "all of them are noticed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
