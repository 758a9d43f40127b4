"""``qkvary analyze``: what it prints and writes, and what it refuses in one sentence."""

from pathlib import Path

import qkvary as qk
from tests.conftest import Typed


def test_page_and_tables_are_written(places: Path, tmp_path: Path, typed: Typed) -> None:
    out = tmp_path / "pages"
    formats = ("--out", out, "--format", "html", "--format", "csv")
    printed = typed("analyze", places / "rotary", "--text", places / "cats", *formats)
    assert f"written: {out / 'analysis.html'}" in printed.replace("\n", "")
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert names >= {"analysis.html", "tables/keys-and-values.csv", "tables/attention.csv"}
    assert "How alike are keys and values in" in (out / "analysis.html").read_text("utf-8")


def test_a_tokenizer_can_be_named(places: Path, typed: Typed) -> None:
    found = typed.json("analyze", places / "bare", "--text", places / "cats", "--tokenizer=bytes")
    assert found["layers"] == qk.analyze(places / "bytes", places / "cats").to_dict()["layers"]
