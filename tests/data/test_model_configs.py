"""Configurations from files, folders and the hub, valid and invalid."""

import json
import os
import re
from pathlib import Path

import pytest

from qkvary.data import model_configs
from qkvary.data.model_configs import LARGEST_CONFIG, load_config, parse_config, resolve_model

LLAMA = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 44,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
}


def write(path: Path, content: object = LLAMA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")
    return path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes | Exception]:
    """A hub that answers with bytes or errors by address, and a cache of its own."""
    answers: dict[str, bytes | Exception] = {}

    def fetch(url: str, *, limit: int) -> bytes:
        assert limit == LARGEST_CONFIG
        answer = answers.pop(url)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(model_configs, "fetch", fetch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    return answers


ADDRESS = "https://huggingface.co/someone/small/resolve/main/config.json"


def test_a_file_is_called_as_it_is_named_or_as_its_folder(tmp_path: Path) -> None:
    assert load_config(str(write(tmp_path / "small" / "config.json"))) == ("small", LLAMA)
    assert load_config(str(write(tmp_path / "mine.json"))) == ("mine", LLAMA)
    assert load_config(str(tmp_path / "small")) == ("small", LLAMA)
    assert load_config(str(tmp_path / "small") + "/") == ("small", LLAMA)


def test_local_files_take_precedence_over_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: dict[str, bytes | Exception]
) -> None:
    write(tmp_path / "someone" / "small" / "config.json")
    monkeypatch.chdir(tmp_path)
    assert load_config("someone/small") == ("small", LLAMA)
    hub[ADDRESS] = json.dumps({**LLAMA, "vocab_size": 101}).encode()
    monkeypatch.chdir(tmp_path / "someone")
    assert load_config("someone/small")[1]["vocab_size"] == 101
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    hub[ADDRESS.replace("huggingface.co", "mirror.example").replace("small", "other")] = b"{}"
    assert load_config("someone/other") == ("someone/other", {})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (FileNotFoundError(), "expected a repository with a config.json, got someone/small"),
        (PermissionError(), "expected a public configuration, got someone/small"),
        (ValueError("expected at most 1,000,000 bytes"), "expected at most 1,000,000 bytes"),
    ],
)
def test_hub_errors(hub: dict[str, bytes | Exception], answer: Exception, message: str) -> None:
    hub[ADDRESS] = answer
    with pytest.raises(ValueError, match=re.escape(message)):
        load_config("someone/small")


@pytest.mark.parametrize(
    "reference", ["", "gpt", "a/b/c", "../b", "\0", "x" * 10_000, "~missing/x"]
)
def test_unknown_references(reference: str, hub: dict[str, bytes | Exception]) -> None:
    with pytest.raises(ValueError, match="expected a named size, a configuration file") as caught:
        load_config(reference)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{\n?", "got text that is not JSON (line 2, column 1)"),
        (b"\xff\xfe{}", "got something else: 'utf-8' codec can't decode byte 0xff"),
        (b"[]", "got a list"),
        (b'{"a": 1, "a": 1}', "got something else: a JSON object holds the same key twice"),
        (b'{"a": NaN}', "got something else: NaN is not valid JSON"),
        (b"[" * 400_000, "got something else: expected at most 100 levels of JSON"),
    ],
)
def test_invalid_json_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=r"expected one JSON object in mine.json, got ") as caught:
        parse_config(data, "mine.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_large_file_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(2 * 10**9)
    with pytest.raises(ValueError, match=r"expected a configuration of at most 1 MB in .*, got"):
        load_config(str(path))
    write(path, {**LLAMA, "padding": "x" * (LARGEST_CONFIG - 200)})
    assert load_config(str(path))[1]["vocab_size"] == 97


def test_special_files_are_not_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ValueError, match=f"expected a regular file, got {path}"):
            load_config(str(path))
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ValueError, match="expected a regular file, got"):
        load_config(str(tmp_path))


def test_names_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "gpt2" / "config.json")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("GPT2").vocabulary == 50257
    assert resolve_model("./gpt2").vocabulary == 97
    assert resolve_model("300M").max_tokens == 2048


def test_a_configuration_becomes_a_model(tmp_path: Path, hub: dict[str, bytes | Exception]) -> None:
    hub[ADDRESS] = json.dumps(LLAMA).encode()
    model = resolve_model("someone/small")
    assert (model.name, len(model.layers)) == ("someone/small", 3)
    assert (tmp_path / "cache" / "configs" / "someone--small.json").is_file()
    write(tmp_path / "config.json", {"model_type": "llamas"})
    with pytest.raises(ValueError, match="known families such as llama"):
        resolve_model(str(tmp_path))


@pytest.mark.network
def test_the_real_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path))
    assert resolve_model("openai-community/gpt2").layers == resolve_model("gpt2").layers
