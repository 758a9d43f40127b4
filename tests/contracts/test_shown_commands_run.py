"""Every command that README and guides show runs as it is typed, on an empty home without data.

A comment that says (needs …), (minutes) or (hours) marks what cannot be run here; the lines of a
page are typed one after another in one folder, which has the files that the page speaks of. Texts
are short, and reports come without pictures.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from qkvary.nn.decoding.build import kept_folder
from tests.conftest import Typed
from tests.contracts.parsed import ROOT
from tests.contracts.test_commands import STUDY_FILE, leave_out_pictures
from tests.contracts.test_documents import TEXTS

BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"#.*\((needs [^)]*|minutes|hours)\)")
SHORT = ("--tokens", "9")
TEXT = "The cat sat on the mat. Once upon a time there was a dog named Tom who liked to run.\n"


def commands_of(page: Path) -> list[str]:
    """The commands of a page that can be run here."""
    lines = "".join(BLOCK.findall(TEXTS[page])).splitlines()
    typed = (line for line in lines if line.startswith("qkvary "))
    return [line.split("#")[0].strip() for line in typed if not ELSEWHERE.search(line)]


DOCUMENTS = "\n".join(json.dumps({"content": f"{number}: {TEXT}"}) for number in range(20))
FILES: dict[str, dict[str, str]] = {
    **{name: {name: TEXT * 60} for name in ("mine.txt", "my-text.txt", "text.txt", "held_out.txt")},
    # Windows of 4k tokens are cut from it.
    "novel.txt": {"novel.txt": TEXT * 200},
    "mine.py": {"mine.py": STUDY_FILE},
    "train.jsonl": {"train.jsonl": DOCUMENTS, "held-out.jsonl": DOCUMENTS},
    "stories/": {f"stories/{number}.txt": f"Story {number}. {TEXT}" for number in range(40)},
    "decode/record.json": {
        "decode/record.json": (ROOT / "studies/ours/decode/record.json").read_text("utf-8")
    },
}
"""Contents of the files that a command needs, by the name it uses."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, with the kernels that were built for the tests."""
    built = kept_folder()
    for name in ("QKVARY_DATA", "QKVARY_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    leave_out_pictures(monkeypatch)
    if built is not None and built.is_dir():
        shutil.copytree(built, tmp_path / ".cache" / "qkvary" / "decoding")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.mark.parametrize(
    "page", [page for page in TEXTS if commands_of(page)], ids=lambda page: page.stem
)
def test_every_command_of_a_page_runs(page: Path, home: Path, typed: Typed) -> None:
    for line in commands_of(page):
        words = shlex.split(line)[1:]
        if words[0] == "generate":
            words += SHORT if "--tokens" not in words else ()
        for named in (FILES[word] for word in words if word in FILES):
            for name, content in named.items():
                if not (home / name).exists():
                    (home / name).parent.mkdir(exist_ok=True)
                    (home / name).write_text(content, "utf-8")
        typed(*words)
