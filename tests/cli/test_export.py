"""``qkvary export``: what is said, and what the folder is good for."""

import json
from pathlib import Path

import pytest

from qkvary.cli.main import main
from tests.reference import char_gpt, llama2c


def test_an_export_answers_like_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llama2c.write_stand_in(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "new" / "out")]) == 0
    printed = capsys.readouterr().out
    assert "QKVForCausalLM, 6 files" in printed
    assert "register() before loading" in printed
    texts: list[str] = []
    for path in (tmp_path / "model", tmp_path / "new" / "out"):
        assert main(["generate", str(path), "the", "--tokens", "9", "--kernel", "layer"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_a_file_for_llama_cpp_answers_like_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llama2c.write_stand_in(tmp_path / "model")
    file = tmp_path / "new" / "a.gguf"
    call = ["export", str(tmp_path / "model"), "--to", "gguf", "--out", str(file)]
    assert main([*call, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["architecture"], found["weights"]) == ("llama", "f32")
    assert found["files"] == {"a.gguf": file.stat().st_size}
    assert main(call) == 0
    printed = capsys.readouterr().out
    assert f"llama, 1 file, {file.stat().st_size:,} bytes" in printed
    texts: list[str] = []
    for path in (tmp_path / "model", file):
        assert main(["generate", str(path), "the", "--tokens", "9", "--kernel", "layer"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{characters}", "--out", "{out}", "--to", "gguf"],
            "that llama.cpp's GPT-2 can express, got the norm placement post-final; choices: pre",
        ),
        (["{llama}", "--out", "{characters}", "--to", "gguf"], "expected a file at"),
        (["{llama}", "--out", "{out}", "--weights", "f16"], "expected --weights with --to gguf"),
        (
            ["{llama}", "--out", "{out}", "--to", "gguf", "--tokenizer", "bytes"],
            "which has its own",
        ),
        (
            ["{llama}", "--out", "{out}", "--to", "gpt2"],
            "that GPT-2 can express, got rotary positions; choices: learned, sinusoidal, none; --",
        ),
        (
            ["{characters}", "--out", "{out}", "--to", "gpt2"],
            "that GPT-2 can express, got the norm placement post-final",
        ),
        (["{llama}", "--out", "{characters}"], "it is not overwritten"),
        (["{out}", "--out", "{out}"], "expected a checkpoint"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    llama2c.write_stand_in(tmp_path / "llama")
    char_gpt.write_stand_in(tmp_path / "characters")
    places = {name: str(tmp_path / name) for name in ("llama", "characters", "out")}
    assert main(["export", *(one.format(**places) for one in arguments)]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
