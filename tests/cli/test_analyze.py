"""``qkvary analyze``: what it prints and writes, and what it refuses in one sentence."""

import json
from pathlib import Path

import pytest

import qkvary as qk
from qkvary.checkpoints.models import save_model
from qkvary.cli.main import main
from qkvary.data.tokenizers import ByteTokenizer
from tests.inference.evaluation.networks import byte_network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("analyze")
    save_model(path / "model", byte_network("QKV", max_tokens=64), ByteTokenizer())
    save_model(path / "bare", byte_network("QKV", max_tokens=64), None)
    (path / "text.txt").write_text("the cat sat on the mat. " * 11, "utf-8")
    (path / "short.txt").write_text("the cat", "utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["analyze", *map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_page_and_tables_are_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "pages"
    words = ("--text", folder / "text.txt", "--out", out, "--format", "html", "--format", "csv")
    code, printed, _ = run(capsys, folder / "model", *words)
    assert code == 0
    assert f"written: {out / 'analysis.html'}" in printed.replace("\n", "")
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert names >= {"analysis.html", "tables/key-value-heads.csv", "tables/attention-heads.csv"}
    page = (out / "analysis.html").read_text("utf-8")
    assert "How alike are keys and values in" in page


def test_a_tokenizer_can_be_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (folder / "bare", "--text", folder / "text.txt", "--tokenizer", "bytes", "--json")
    code, out, _ = run(capsys, *words)
    assert code == 0
    expected = qk.analyze(folder / "model", folder / "text.txt").to_dict()
    assert json.loads(out)["layers"] == expected["layers"]
