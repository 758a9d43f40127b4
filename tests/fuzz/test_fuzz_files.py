"""Mutated files load or are refused in a sentence within seconds; cases of attackers.

``FUZZ_SEEDS=0:1000 pytest --timeout 0 tests/fuzz`` tries a thousand mutations of every kind.
"""

import lzma
import os
import random
import re
import signal
import struct
import traceback
import warnings
from pathlib import Path

import pytest

from qkvary.checkpoints.gguf.headers import parse_file
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel
from qkvary.cli.main import main
from qkvary.storage import parser_processes
from qkvary.storage.errors import DamagedError, QkvaryError
from qkvary.storage.journal import to_line
from qkvary.storage.manifest import MANIFEST_NAME
from qkvary.storage.untrusted_files import FREE_BYTES, MAX_ENTRIES
from qkvary.studies.running.run_archive import unpack_runs
from qkvary.studies.running.store import Store
from tests.checkpoints.gguf.test_networks import build, rotary_config
from tests.fuzz.formats import FORMATS, Format

CASES = Path(__file__).with_name("cases")
SEEDS = range(*map(int, os.environ.get("FUZZ_SEEDS", "0:10").split(":")))
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
            warnings.filterwarnings("ignore", ".*head is used")
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


@pytest.mark.parametrize("name", FORMATS)
def test_a_few_mutations_load_or_are_refused(name: str, tmp_path: Path) -> None:
    found = try_seeds(name, SEEDS, tmp_path)
    failed = [f"seed {seed}: {text}" for seed, text in found.items() if text.startswith("FAILED")]
    assert not failed, "\n".join(failed)
    assert any(text != "loads" for text in found.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tokenizer-panic.json", "expected a tokenizer.json, got something else: Precompiled"),
        ("tokenizer-onig-panic.json", "this tokenizer cannot encode the text: Onig: Regex search"),
        (
            "tokenizer-bomb.json",
            "this tokenizer cannot encode the text: the parser of this file (takes|stopped)",
        ),
    ],
)
def test_tokenizers_of_attackers_are_a_sentence_of_the_command(
    name: str,
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parser_processes, "PARSER_BYTES", 2**30)
    network = build(rotary_config("QKV", fraction=1.0, vocabulary=300, max_tokens=61))
    export_folder(LoadedModel(network, None), tmp_path / "model", to="llama")
    (tmp_path / "model" / MANIFEST_NAME).unlink()
    (tmp_path / "model" / "tokenizer.json").write_bytes((CASES / name).read_bytes())
    prompt = "a" * 40 + "b"
    code = main(["generate", str(tmp_path / "model"), prompt, "--tokens", "1"])
    errors = capfd.readouterr().err
    assert code in (2, 3)
    assert re.search(message, errors)
    assert errors.startswith("qkvary: ")
    assert errors.count("\n") == 1


def test_a_gguf_of_endless_lists_is_damage() -> None:
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    for kind, width in ((8, 8), (4, 4)):
        count = MAX_ENTRIES + 1
        body = struct.pack("<IIQ", 9, kind, count) + bytes(width * count)
        with pytest.raises(DamagedError, match="values in its lists, expected at most"):
            parse_file(head + body, "x")


def test_runs_that_expand_without_end_are_damage(tmp_path: Path) -> None:
    line = to_line({"format": "runs", "version": 1, "runs": 10**6})
    junk = to_line({"run_key": "x" * 2**20})
    path = tmp_path / "runs.xz"
    path.write_bytes(lzma.compress(line + b"x" * (FREE_BYTES + 2**20), preset=1))
    with pytest.raises(
        DamagedError, match="the file expands to more bytes than the limit for packed runs"
    ):
        unpack_runs(path, Store(tmp_path / "store"))
    path.write_bytes(lzma.compress(line + junk, preset=1))
    with pytest.raises(DamagedError, match="holds a run that cannot be read"):
        unpack_runs(path, Store(tmp_path / "store"))
