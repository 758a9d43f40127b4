"""``qkvary analyze``: what it prints and writes, and what it refuses in one sentence."""

from pathlib import Path

import pytest

import qkvary as qk
from qkvary.checkpoints.models import save_model
from qkvary.data.tokenizers import ByteTokenizer
from tests.conftest import Typed
from tests.inference.evaluation.networks import byte_network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("analyze")
    save_model(path / "model", byte_network("QKV", max_tokens=64), ByteTokenizer())
    save_model(path / "bare", byte_network("QKV", max_tokens=64), None)
    (path / "text.txt").write_text("the cat sat on the mat. " * 11, "utf-8")
    return path


def test_page_and_tables_are_written(folder: Path, typed: Typed) -> None:
    out = folder / "pages"
    formats = ("--out", out, "--format", "html", "--format", "csv")
    printed = typed("analyze", folder / "model", "--text", folder / "text.txt", *formats)
    assert f"written: {out / 'analysis.html'}" in printed.replace("\n", "")
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert names >= {"analysis.html", "tables/keys-and-values.csv", "tables/attention.csv"}
    assert "How alike are keys and values in" in (out / "analysis.html").read_text("utf-8")


def test_a_tokenizer_can_be_named(folder: Path, typed: Typed) -> None:
    words = ("--text", folder / "text.txt", "--tokenizer", "bytes")
    found = typed.json("analyze", folder / "bare", *words)
    assert found["layers"] == qk.analyze(folder / "model", folder / "text.txt").to_dict()["layers"]
