"""``qkvary export``: what is said, and what the folder is good for."""

import json
from pathlib import Path

import pytest

from qkvary.cli.main import main
from tests.reference import llama2c


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
