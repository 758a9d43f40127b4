"""A checkpoint without a tokenizer: which files would do, and one by its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkvary.checkpoints.models import save_model
from qkvary.cli.main import main
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
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


def generated(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["generate", *words, "the cat", "--tokens", "4", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["text"]


def test_which_files_would_do(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("generate", "alone", "the"),
        ("evaluate", "alone", "--data", str(places / "text.txt")),
        ("bench", "quantized", "alone", "--text", str(places / "text.txt")),
    ):
        typed = [str(places / word) if word == "alone" else word for word in words]
        assert main(typed) == 2
        said = capsys.readouterr().err
        assert "alone has no tokenizer: put tok" in said
        assert ".bin or tokenizer.bin next to the weights, or give one with --tokenizer" in said
    assert main(["generate", str(places / "own"), "the"]) == 2
    assert "own has no tokenizer: give one with --tokenizer" in capsys.readouterr().err


def test_a_tokenizer_by_its_file_or_name(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = generated(capsys, str(places / "alone"), "--tokenizer", str(places / "kept.bin"))
    assert given == generated(capsys, str(places / "beside"))
    named = generated(capsys, str(places / "own"), "--tokenizer", "bytes")
    assert named == generated(capsys, str(places / "whole"))
    assert named == generated(
        capsys, str(places / "own"), "--tokenizer", str(places / "tokenizer.json")
    )


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
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(places)
    assert main(["generate", str(places / name), "a", "--tokenizer", tokenizer]) == 2
    assert says.format(whole=places / "whole") in capsys.readouterr().err


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_answer_that_is_no_text_says_so(
    places: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Random weights write random bytes."""
    assert main(["generate", str(places / "whole"), "é", "--tokens", "9", *options]) == 0
    shown = capsys.readouterr()
    assert ("\\ufffd" if options == ("--json",) else "\N{REPLACEMENT CHARACTER}") in shown.out
    assert "the model wrote bytes that are not UTF-8: \N{REPLACEMENT CHARACTER} stands" in shown.err
