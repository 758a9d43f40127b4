"""What a person sees of preparing: figures, a line of progress, and where an error lies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import qkvary
from qkvary.cli.app import show_progress
from qkvary.data.prepared import open_prepared
from qkvary.text.progress_line import ProgressLine
from tests.conftest import Typed
from tests.data.small_sets import made_up
from tests.forked import ForkedPython


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "stories"
    folder.mkdir()
    (folder / "all.txt").write_text("<|endoftext|>".join(made_up(40, seed=1)), "utf-8")
    return folder


def test_a_set_is_shown_and_found_again(texts: Path, tmp_path: Path, typed: Typed) -> None:
    printed, said = typed.both("data", "prepare", texts, "--tokenizer", "bytes")
    assert said == ""
    for part in (
        "stories: ",
        "tokenizer bytes: 257 tokens, 256 after each document",
        "tokens per byte",
        "held out: 0.05 of the documents, by smallest sha256",
        "documents that are in two splits: 0 of validation in train",
    ):
        assert part in printed
    shown = typed("data", "show", "stories/bytes", "--document", "3")
    assert shown.startswith(printed)
    assert "document 3 of train begins:\nx" in shown
    document = typed.json("data", "show", tmp_path / "cache/data/stories-bytes")
    assert document["splits"]["train"]["documents"] == 38
    assert document["splits"]["train"]["tokens_per_byte"] == 1.0
    assert document["sample"].startswith("x")
    said = typed.error("data", "show", "stories/bytes", "--document", "38")
    assert "expected a document from 0 to 37, got 38" in said


def test_a_share_far_from_the_requested_one_is_reported(texts: Path, typed: Typed) -> None:
    (texts / "all.txt").write_text("<|endoftext|>".join(made_up(3, seed=1)), "utf-8")
    call = ("data", "prepare", texts, "--tokenizer", "bytes")
    printed = " ".join(typed(*call).split())
    assert ", not 0.05: only whole documents can be held out" in printed
    assert typed.json(*call)["warning"] in printed


def test_progress_says_how_far_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = iter([0.0, 31.0, 62.0]), list[str]()
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


NAMES = {"Война и мир": "Война-и-мир", "रामायण": "रामायण", "e\u0301": "\u00e9", "x" * 90: "x" * 80}


def test_names_in_any_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed) -> None:
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / f"{name}.txt").write_text("а б в " * 99, "utf-8")
        typed("data", "prepare", f"{name}.txt", "--tokenizer", "bytes")
    made = {path.name for path in (tmp_path / "cache" / "data").iterdir()}
    assert made == {f"{name}-bytes" for name in NAMES.values()}


def test_ctrl_c_leaves_what_is_done_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
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
    assert "interrupted" in error
    assert not (place / "MANIFEST.json").exists()
    typed(*words, "1")
    data = open_prepared(place)
    assert sum(split.documents for split in data.splits.values()) == 40_000
