"""A checkpoint without a tokenizer: which files would do, and one by its name."""

import json
import shutil
from pathlib import Path

import pytest

from qkvary.data.tokenizers import ByteTokenizer
from tests.conftest import Typed


@pytest.fixture
def folder(places: Path, tmp_path: Path) -> Path:
    """A checkpoint of another program, and its tokenizer elsewhere."""
    folder = tmp_path
    shutil.copytree(places / "rotary", folder / "alone")
    (found,) = (folder / "alone").glob("tok*.bin")
    found.rename(folder / "kept.bin")
    return folder


def test_a_missing_tokenizer_can_be_given(places: Path, folder: Path, typed: Typed) -> None:
    for words in (
        ("generate", folder / "alone", "the"),
        ("evaluate", folder / "alone", "--data", places / "cats"),
        ("bench", "quantized", folder / "alone", "--text", places / "cats"),
    ):
        said = typed.error(*words)
        assert "alone has no tokenizer: give one with --tokenizer" in said


def test_a_tokenizer_by_its_file_or_name(places: Path, folder: Path, typed: Typed) -> None:
    def generate(path: Path, *tokenizer: object) -> str:
        words = ("generate", path, "the cat", "--tokens", "4", *tokenizer)
        return typed.json(*words)["text"]

    found = generate(folder / "alone", "--tokenizer", folder / "kept.bin")
    assert found == generate(places / "rotary")
    (folder / "tokenizer.json").write_text(json.dumps(ByteTokenizer().describe()))
    for tokenizer in ("bytes", folder / "tokenizer.json"):
        named = generate(places / "bare", "--tokenizer", tokenizer)
        assert named == generate(places / "bytes")
