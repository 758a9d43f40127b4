"""Texts are printed as they come, are the same in JSON, and bad input is one sentence."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.models import save_model
from qkvary.cli.main import main
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import make_language_model_config, randomize
from tests.reference import llama2c


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of every kind: our own with characters and without, a llama2.c one."""
    folder = tmp_path_factory.mktemp("models")
    model = LanguageModel(make_language_model_config("Q-K=V", positions="learned"))
    randomize(model, seed=7)
    save_model(folder / "own", model, CharacterTokenizer("abcdefgh .\n\té"))
    save_model(folder / "mute", model)
    llama2c.write_stand_in(folder / "llama")
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["generate", *words]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return json.loads(printed(capsys, *words, "--json"))


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--temperature", "1.3", "--seed", "4"],
        ["--top-p", "0.8", "--min-p", "0.1", "--repetition-penalty", "1.2"],
        ["--stop", "a", "--stop", "bc"],
        ["--beams", "3"],
    ],
)
def test_what_is_shown_is_what_the_document_says(
    options: list[str], places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(places / "own"), "ab é", "--tokens", "9", *options]
    found = document(capsys, *words)
    assert printed(capsys, *words) == f"ab é{found['text']}\n"
    assert found["prompt_tokens"] == [0, 1, 8, 12]
    assert len(found["tokens"]) <= 9
    assert found == document(capsys, *words)
    assert found["logprobs"] is None
    assert found["finish"] in {"length", "stop"}


@pytest.mark.parametrize(
    "options", [["--deterministic-batch"], ["--beams", "2"], ["--top-k", "9", "--stop", "a"]]
)
def test_several_prompts_get_the_texts_of_each(
    options: list[str], places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts that do not fit one batch of 17 places together are among them."""
    own, prompts = str(places / "own"), ["ab", "abcdefgh", "é", "abcdefgh .\n\té"]
    alone = [document(capsys, own, prompt, "--tokens", "4", *options) for prompt in prompts]
    together = document(capsys, own, *prompts, "--tokens", "4", *options)
    assert [
        {key: answer[key] for key in ("prompt", "tokens", "text", "finish")}
        for answer in together["answers"]
    ] == [{key: one[key] for key in ("prompt", "tokens", "text", "finish")} for one in alone]
    shown = printed(capsys, own, *prompts, "--tokens", "4", *options)
    assert shown == "\n\n".join(one["prompt"] + one["text"] for one in alone) + "\n"


def test_a_filter_without_a_temperature_means_to_sample(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = str(places / "own")
    assert document(capsys, own, "a")["sampling"]["temperature"] == 0.0
    assert document(capsys, own, "a", "--top-k", "3")["sampling"]["temperature"] == 1.0
    cold = document(capsys, own, "a", "--top-k", "3", "--temperature", "0")
    assert cold["text"] == document(capsys, own, "a")["text"]
    seeds = {document(capsys, own, "a", "--top-k", "9", "--seed", str(n))["text"] for n in range(5)}
    assert len(seeds) > 1


def test_as_many_tokens_as_there_are_places_if_nobody_says(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(document(capsys, str(places / "own"), "abc")["tokens"]) == 15
    assert len(document(capsys, str(places / "own"), "abc", "--tokens", "0")["tokens"]) == 0


def test_log_probabilities_are_listed_and_those_of_the_model(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(places / "own"), "ab", "--tokens", "4", "--logprobs", "--top-k", "4"]
    found = document(capsys, *words)
    network, _ = load_checkpoint(places / "own")
    tokens = found["prompt_tokens"] + found["tokens"]
    with torch.no_grad():
        every = torch.log_softmax(network(torch.tensor([tokens])).double()[0], dim=-1)
    expected = [float(every[1 + n, token]) for n, token in enumerate(found["tokens"])]
    assert found["logprobs"] == pytest.approx(expected, abs=1e-5)
    table = printed(capsys, *words)
    for token, logprob in zip(found["tokens"], found["logprobs"], strict=True):
        assert any(
            row.split()[0] == str(token) and row.split()[-1] == f"{logprob:.4f}"
            for row in table.splitlines()
            if row.split()
        )


def test_a_text_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_language_model_config("QKV")
    model = LanguageModel(config)
    randomize(model, seed=1)
    save_model(tmp_path / "model", model, CharacterTokenizer("\x1b\x07\n\t[31mabcdéf"[:13]))
    shown = printed(capsys, str(tmp_path / "model"), "\x1b[31m\ta", "--tokens", "9")
    assert not {"\x1b", "\x07"} & set(shown)
    assert shown.startswith("\\x1b[31m\ta")


def test_a_kernel_that_there_is_not_is_refused_before_the_prompt_is_shown(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QKVARY_DECODE_KERNEL", "junk")
    assert main(["generate", str(places / "own"), "a"]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    (said,) = found.err.splitlines()
    assert "expected a kernel for decoding in QKVARY_DECODE_KERNEL, got 'junk'; choices: " in said


def test_a_damaged_checkpoint_has_an_exit_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llama2c.write_stand_in(tmp_path / "model")
    file = tmp_path / "model" / "model.bin"
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["generate", str(file), "a"]) == 3
    assert "bytes instead of the" in capsys.readouterr().err
    file.write_bytes(b"PK\x03\x04" + file.read_bytes())
    assert main(["generate", str(file), "a"]) == 7
    assert "is a pickle" in capsys.readouterr().err


def test_bytes_of_one_character_are_shown_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(make_language_model_config("QKV"), vocabulary=256)
    model = LanguageModel(config)
    randomize(model, seed=2)
    save_model(tmp_path / "model", model, ByteTokenizer())
    found = document(capsys, str(tmp_path / "model"), "é", "--tokens", "12", "--top-k", "200")
    assert found["prompt_tokens"] == [0xC3, 0xA9]
    assert found["text"] == bytes(found["tokens"]).decode("utf-8", "replace")
