"""What a person sees of preparing: figures, a line of progress, and where an error lies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import qkvary
from qkvary.cli.app import ProgressLine, show_progress
from qkvary.cli.main import main
from qkvary.data.prepared import open_prepared
from tests.data.small_sets import made_up
from tests.forked import ForkedPython


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "stories"
    folder.mkdir()
    (folder / "all.txt").write_text("<|endoftext|>".join(made_up(40, seed=1)), "utf-8")
    return folder


def test_a_set_is_shown_and_found_again(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "prepare", str(texts), "--tokenizer", "bytes"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for part in (
        "stories: ",
        "tokenizer bytes: 257 tokens, 256 after each document",
        "tokens per byte",
        "held out: 0.05 of the documents, by smallest sha256",
        "equal documents across splits: 0 of validation in train",
    ):
        assert part in printed.out
    assert main(["data", "show", "stories/bytes", "--document", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(printed.out)
    assert "document 3 of train begins:\nx" in shown
    assert main(["data", "show", str(tmp_path / "cache/data/stories-bytes"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["splits"]["train"]["documents"] == 38
    assert document["splits"]["train"]["tokens_per_byte"] == 1.0
    assert document["sample"].startswith("x")
    assert main(["data", "show", "stories/bytes", "--document", "38"]) == 2
    assert "expected a document from 0 to 37, got 38" in capsys.readouterr().err


def test_a_share_far_from_the_requested_one_is_reported(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (texts / "all.txt").write_text("<|endoftext|>".join(made_up(3, seed=1)), "utf-8")
    call = ["data", "prepare", str(texts), "--tokenizer", "bytes"]
    assert main(call) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "is held out" in line)
    assert ", not 0.05: whole documents are held out" in line
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warning"] == line


def test_progress_says_how_far_and_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, lines = iter([0.0, 0.0, 31.0, 62.0]), list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    monkeypatch.setattr(ProgressLine, "show", lambda _line, describe: lines.append(describe()))
    with show_progress("preparing", "bytes") as update:
        # What was resumed took no time.
        update(1_000, 3_000, "5 documents")
        update(2_000, 3_000, "9 documents")
    assert lines == [
        "preparing: 1,000 of 3,000 bytes, 5 documents",
        "preparing: 2,000 of 3,000 bytes, 9 documents, 31 s left",
    ]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working folder, with a cache of its own."""
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(*words: str) -> int:
    return main(["data", "prepare", *words, "--tokenizer", "bytes"])


@pytest.mark.parametrize(
    "name", ["Война и мир.txt", "紅楼夢.txt", "रामायण.txt", "e\u0301.txt", "x" * 90 + ".txt"]
)
def test_names_in_any_script(here: Path, name: str) -> None:
    (here / name).write_text("а б в " * 99, "utf-8")
    assert prepare(name) == 0
    (folder,) = (here / "cache" / "data").iterdir()
    assert folder.name == {
        "Война и мир.txt": "Война-и-мир-bytes",
        "紅楼夢.txt": "紅楼夢-bytes",
        "रामायण.txt": "रामायण-bytes",
        "e\u0301.txt": "\u00e9-bytes",
    }.get(name, "x" * 80 + "-bytes")


def test_ctrl_c_leaves_what_is_done_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    text = "<|endoftext|>".join(f"{number} " + "word " * 200 for number in range(40_000))
    (tmp_path / "long.txt").write_text(text, "utf-8")
    words = ["data", "prepare", str(tmp_path / "long.txt"), "--tokenizer", "bytes", "--workers"]
    command = "from qkvary.cli.main import run; run()"
    process = ForkedPython(
        [sys.executable, "-c", command, *words, "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(qkvary.__file__).parents[1])},
    )
    place = tmp_path / "cache" / "data" / "long-bytes"
    while process.poll() is None and not list(place.glob("portion-*.json")):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    printed, error = process.communicate()
    assert (process.returncode, printed) == (130, "")
    assert "interrupted; the same command resumes where it stopped" in error
    assert not (place / "MANIFEST.json").exists()
    assert main([*words, "1"]) == 0
    capsys.readouterr()
    data = open_prepared(place)
    assert sum(split.documents for split in data.splits.values()) == 40_000
