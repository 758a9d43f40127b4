"""A checkpoint without a tokenizer: which files would do, and one by its name."""

import json
from pathlib import Path

import pytest

from qkvary.checkpoints.models import save_model
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from tests.conftest import Typed
from tests.inference.evaluation.networks import byte_network
from tests.reference import llama2c

TEXT = "the cat sat on the mat. " * 20


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of another program beside its tokenizer, and two without theirs."""
    folder = tmp_path_factory.mktemp("tokenizers")
    for name in ("beside", "alone"):
        llama2c.write_stand_in(folder / name)
    (found,) = (folder / "alone").glob("tok*.bin")
    found.rename(folder / "kept.bin")
    save_model(folder / "own", byte_network("Q-K=V", max_tokens=160))
    save_model(folder / "whole", byte_network("Q-K=V", max_tokens=160), ByteTokenizer())
    (folder / "tokenizer.json").write_text(json.dumps(ByteTokenizer().describe()))
    large = CharacterTokenizer("".join(map(chr, range(1000, 2000))), has_separator=True)
    (folder / "large.json").write_text(json.dumps(large.describe()))
    (folder / "text.txt").write_text(TEXT)
    return folder


def test_which_files_would_do(places: Path, typed: Typed) -> None:
    for words in (
        ("generate", places / "alone", "the"),
        ("evaluate", places / "alone", "--data", places / "text.txt"),
        ("bench", "quantized", places / "alone", "--text", places / "text.txt"),
    ):
        said = typed.error(*words)
        assert "alone has no tokenizer: put tok" in said
        assert ".bin or tokenizer.bin next to the weights, or give one with --tokenizer" in said
    said = typed.error("generate", places / "own", "the")
    assert "own has no tokenizer: give one with --tokenizer" in said


def test_a_tokenizer_by_its_file_or_name(places: Path, typed: Typed) -> None:
    def generate(name: str, *tokenizer: object) -> str:
        words = ("generate", places / name, "the cat", "--tokens", "4", *tokenizer)
        return typed.json(*words)["text"]

    assert generate("alone", "--tokenizer", places / "kept.bin") == generate("beside")
    named = generate("own", "--tokenizer", "bytes")
    assert named == generate("whole")
    assert named == generate("own", "--tokenizer", places / "tokenizer.json")


@pytest.mark.parametrize(
    ("name", "tokenizer", "says"),
    [
        ("whole", "bytes", "expected no --tokenizer with {whole}, which has its own, got bytes"),
        ("own", "large.json", "expected a tokenizer of at most "),
        ("alone", "none", "expected a tokenizer, got 'none'; choices: gpt2, bytes"),
        ("own", "kept.bin", "kept.bin has 529 bytes after 256 pieces"),
    ],
)
def test_one_that_does_not_fit(
    places: Path,
    name: str,
    tokenizer: str,
    says: str,
    typed: Typed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(places)
    said = typed.error("generate", places / name, "a", "--tokenizer", tokenizer)
    assert says.format(whole=places / "whole") in said


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_answer_that_is_no_text_says_so(
    places: Path, options: tuple[str, ...], typed: Typed
) -> None:
    """Random weights write random bytes."""
    printed, said = typed.both("generate", places / "whole", "é", "--tokens", "9", *options)
    assert ("\\ufffd" if options == ("--json",) else "\N{REPLACEMENT CHARACTER}") in printed
    assert "the model wrote bytes that are not UTF-8: \N{REPLACEMENT CHARACTER} stands" in said
