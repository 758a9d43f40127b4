"""Mutated files load or are refused in a sentence; cases of attackers and of seeds that failed."""

import lzma
import re
import struct
from pathlib import Path

import pytest

from qkvary.checkpoints.gguf.headers import parse_file
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel
from qkvary.cli.main import main
from qkvary.storage import parser_processes
from qkvary.storage.errors import DamagedError
from qkvary.storage.journal import to_line
from qkvary.storage.manifest import MANIFEST_NAME
from qkvary.storage.untrusted_files import FREE_BYTES, MAX_ENTRIES
from qkvary.studies.running.run_archive import unpack_runs
from qkvary.studies.running.store import Store
from tests.checkpoints.gguf.test_networks import build, rotary_config
from tests.fuzz.formats import FORMATS
from tests.fuzz.fuzz_files import try_seeds

CASES = Path(__file__).with_name("cases")
FEW = range(10)
"""The script in this folder tries a thousand."""


@pytest.mark.parametrize("name", FORMATS)
def test_a_few_mutations_load_or_are_refused(name: str, tmp_path: Path) -> None:
    found = try_seeds(name, FEW, tmp_path)
    failed = [f"seed {seed}: {text}" for seed, text in found.items() if text.startswith("FAILED")]
    assert not failed, "\n".join(failed)
    assert any(text != "loads" for text in found.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tokenizer-panic.json", "expected a tokenizer.json, got something else: Precompiled"),
        ("tokenizer-onig-panic.json", "this tokenizer cannot encode the text: Onig: Regex search"),
        ("tokenizer-bomb.json", "this tokenizer cannot encode the text: its parser (takes|ended)"),
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
    with pytest.raises(DamagedError, match="it expands to more bytes than runs have"):
        unpack_runs(path, Store(tmp_path / "store"))
    path.write_bytes(lzma.compress(line + junk, preset=1))
    with pytest.raises(DamagedError, match="holds a run that cannot be read"):
        unpack_runs(path, Store(tmp_path / "store"))
