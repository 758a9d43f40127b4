"""What the repository must not say: paths of one machine, hosts of packages, notes to oneself."""

import re
import subprocess
from pathlib import Path

from tests.contracts.parsed import ROOT

TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cff", ".js", ".css", ".json", ""}
PATTERNS = {
    "the path of one machine": r"(?<![\w./])/(home|root|Users|mnt|srv|opt|work)/\w",
    "a host of a package index": r"(pypi|pythonhosted|npmjs|debian)\.(org|com)",
    "a conflict marker": r"^(<{7}|>{7}|={7})( |$)",
    "a code of a document elsewhere": r'"""[A-Z][0-9]{1,2}[:.,] |mutant of [A-Z][0-9]',
    "a note to oneself": r"\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b",
}


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = listed.stdout.split("\0") if listed.returncode == 0 else []
    paths = [ROOT / name for name in names if name] or list((ROOT / "src").rglob("*.py"))
    return [path for path in paths if path.suffix in TEXT and path.is_file()]


def test_files_do_not_say_it() -> None:
    patterns = {what: re.compile(text, re.MULTILINE) for what, text in PATTERNS.items()}
    found = []
    for path in tracked_files():
        content = path.read_text("utf-8", errors="replace")
        found += [
            f"{path.relative_to(ROOT)}: {what}: {match[0]!r}"
            for what, pattern in patterns.items()
            for match in pattern.finditer(content)
        ]
    assert found == []


def test_large_files_are_meant() -> None:
    """Records and pictures are small; data ships compressed."""
    large = {
        path.relative_to(ROOT).as_posix(): path.stat().st_size
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.stat().st_size > 1_000_000
    }
    assert large == {}
