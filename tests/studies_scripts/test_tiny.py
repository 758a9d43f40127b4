"""The script of the packaged models: its tokenizer, its study, and that it refuses another text."""

from pathlib import Path

import pytest

from qkvary.arch.canonical import from_dict
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import LanguageModelConfig
from qkvary.data.checkpoint_names import PACKAGED, packaged_names
from qkvary.storage.jsonvalues import decode
from tests.studies_scripts.loading import load_script

script = load_script("tiny", "train")
STORIES = ("Once upon a time there was a cat.\nThe cat sat on the mat.", "The cat had a hat.")


def test_the_tokenizer_is_learnt_and_needs_no_library() -> None:
    pieces = 3 + 256 + len(script.ALPHABET) + 5
    tokenizer = script.learn_tokenizer(STORIES, pieces=pieces)
    assert tokenizer.vocabulary == pieces
    assert tokenizer.pieces[-5] == b"at"
    for text in (*STORIES, "zebra (8)"):
        tokens = tokenizer.encode(text)
        read = zip([None, *tokens], tokens, strict=False)
        assert b"".join(tokenizer.piece(token, after=after) for after, token in read) == (
            text.encode()
        )


def test_the_packaged_networks_are_those_of_the_script() -> None:
    network = script.make_network()
    assert set(packaged_names()) == set(script.NAMES.values())
    for variant, name in script.NAMES.items():
        stored = decode((PACKAGED / name / "config.json").read_bytes())
        assert from_dict(LanguageModelConfig, stored) == network.with_variant(
            parse_variant(variant)
        )


def test_another_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("Once upon a time.", "utf-8")
    with pytest.raises(SystemExit):
        script.main([str(text), "--out", str(tmp_path / "runs"), "--to", str(tmp_path / "models")])
    assert "expected a text with the sha256 5352b299" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()
