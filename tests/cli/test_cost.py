"""``qkvary cost``: the documented JSON, figures of the cost functions, on a screen of any width."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkvary.arch.families.sizes import load_size
from qkvary.arch.labels import parse_variant
from qkvary.cli.main import main
from qkvary.costs.cache import growth_bytes, model_cache_bytes
from qkvary.costs.macs import decode_macs
from qkvary.costs.parameters import model_parameters

LLAMA = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_attention_heads": 12,
    "num_hidden_layers": 5,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def counted(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["cost", *arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["cost", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA), "utf-8")
    return path


def test_json_has_the_documented_shape(capsys: pytest.CaptureFixture[str]) -> None:
    document = counted(capsys, "gpt2", "--context", "1k", "--batch", "3")
    assert (document["model"], document["context"], document["batch"]) == ("gpt2", 1024, 3)
    assert (document["dtype"], document["weights"]) == ("bf16", "bf16")
    for row in document["rows"]:
        assert row.keys() >= {
            "variant",
            "parameters",
            "macs_per_token",
            "cache_bytes_per_token",
            "cache_bytes",
        }
        assert row["parameters"].keys() >= {"total", "embedding", "attention", "mlp", "norm"}
        assert all(isinstance(size, int) for size in row["parameters"].values())
        assert isinstance(row["macs_per_token"], int)
        assert isinstance(row["cache_bytes"], int)
        parts = [
            size for part, size in row["parameters"].items() if part not in {"total", "active"}
        ]
        assert sum(parts) == row["parameters"]["total"]
    # Every figure that needs one is explained where it stands.
    assert document["conventions"].keys() <= {*document, *document["rows"][0]}
    assert document["engines"].keys() == {"vllm", "llama.cpp", "transformers"}


def test_gpt2_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    row = counted(capsys, "gpt2", "--context", "1000")["rows"][0]
    assert row["variant"] == "QKV"
    assert row["parameters"]["total"] == 124_439_808
    assert row["parameters"]["embedding"] == 50_257 * 768
    assert row["parameters"]["positions"] == 1024 * 768
    assert row["parameters"]["attention"] == 12 * 4 * (768 * 768 + 768)
    assert row["parameters"]["mlp"] == 12 * (2 * 768 * 3072 + 3072 + 768)
    assert row["parameters"]["norm"] == 25 * 2 * 768
    assert row["parameters"]["head"] == 0
    assert row["weight_bytes"] == 2 * 124_439_808
    assert row["macs_per_token"] == 12 * (12 * 768**2 + 2 * 1000 * 768) + 50_257 * 768
    assert row["cache_bytes_per_token"] == 12 * 2 * 768 * 2
    assert row["cache_bytes"] == 1000 * 12 * 2 * 768 * 2
    assert row["change"] == {"parameters": 0, "macs_per_token": 0, "cache_bytes": 0}


def test_every_row_is_what_the_cost_functions_say(capsys: pytest.CaptureFixture[str]) -> None:
    document = counted(
        capsys, "llama-3.1-8b", "--context", "32k", "--batch", "5", "--dtype", "int8"
    )
    assert document["context"] == 32_768
    base = document["rows"][0]
    assert (base["variant"], base["original"]) == ("GQA-8", True)
    for row in document["rows"]:
        model = load_size("llama-3.1-8b").with_variant(parse_variant(row["variant"]))
        assert row["parameters"]["total"] == model_parameters(model).total
        assert row["macs_per_token"] == decode_macs(model, context=32_768).total
        assert row["cache_bytes_per_token"] == growth_bytes(model, stored_as="int8")
        held = model_cache_bytes(model, context=32_768, stored_as="int8")
        assert row["cache_bytes"] == 5 * held
        assert row["change"]["cache_bytes"] == row["cache_bytes"] - base["cache_bytes"]


def test_a_cache_that_grows_unevenly_has_its_mean_and_its_growth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Never the bytes of a first token, which no later one takes: windows are full by then."""
    arguments = ("deepseek-v4-flash", "--context", "8k")
    (row,) = counted(capsys, *arguments)["rows"]
    mean = model_cache_bytes(load_size("deepseek-v4-flash"), context=8192) / 8192
    assert row["mean_cache_bytes_per_token"] == mean
    assert row["cache_growth_bytes_per_token"] == 6880
    assert shown(capsys, *arguments).count("cache/token") == 2


def test_a_cache_that_grows_evenly_has_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "llama-3.2-1b")
    assert text.count("cache/token") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--variant", "Q-K=V", "--variant", "mqa"),
        ("--variant", "q,k=v", "MQA"),
        ("--variants", "Q-K=V", "GQA-1"),
    ],
)
def test_variants_are_asked_for_in_any_way(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = counted(capsys, "300M", *arguments)["rows"]
    assert [row["variant"] for row in rows if row["stored"] is None] == ["QKV", "Q-K=V", "MQA"]


def test_a_state_is_shown_beside_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """A preset with rotary positions: linear attention takes none of them over."""
    asked = ("lm-10m", "--variant", "Q-K=V@linear", "--context", "4k", "--batch", "3")
    original, row = (one for one in counted(capsys, *asked)["rows"] if one["stored"] is None)
    assert (original["variant"], original["state_bytes"]) == ("QKV", 0)
    state = 3 * 8 * 8 * (40 * 40 + 40) * 4
    assert (row["cache_bytes"], row["state_bytes"]) == (state, state)
    assert (row["cache_bytes_per_token"], row["cache_growth_bytes_per_token"]) == (0, 0)


def test_a_variant_that_does_not_fit_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    document = counted(capsys, "300M", "--variant", "GQA-3", "MQA")
    assert [row["variant"] for row in document["rows"] if not row["stored"]] == ["QKV", "MQA"]
    assert any(note.startswith("GQA-3 does not fit lm-300m: ") for note in document["notes"])
    assert "  - GQA-3 does not fit lm-300m" in shown(capsys, "300M", "--variant", "GQA-3")


def test_a_file_and_its_folder_are_the_same_model(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_file, by_folder = counted(capsys, str(config)), counted(capsys, str(config.parent))
    assert by_file == by_folder
    assert by_file["model"] == "tiny"
    assert by_file["context"] == 4096
    # Two tensors of 4 heads of 8 in 16 bits, in 5 layers.
    assert by_file["rows"][0]["cache_bytes_per_token"] == 2 * 4 * 8 * 2 * 5


def test_without_a_context_it_is_the_models_own_up_to_8k(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert counted(capsys, "gpt2")["context"] == 1024
    assert counted(capsys, "llama-3.1-8b")["context"] == 8192


def test_an_encoders_tokens_are_echoed(capsys: pytest.CaptureFixture[str]) -> None:
    assert counted(capsys, "t5-small", "--encoder-tokens", "2k")["encoder_tokens"] == 2048
    assert counted(capsys, "whisper-tiny", "--encoder-tokens", "2k")["encoder_tokens"] == 1500
    assert counted(capsys, "gpt2", "--encoder-tokens", "2k")["encoder_tokens"] is None


def test_units_are_never_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    binary = shown(capsys, "llama-3.1-8b", "--context", "32k")
    assert "4 GiB" in binary
    assert not any(f" {unit}" in binary for unit in ("kB", "MB", "GB"))
    decimal = shown(capsys, "llama-3.1-8b", "--context", "32k", "--decimal")
    assert "4.29 GB" in decimal
    assert "iB" not in decimal


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "got 'nonsense'; named sizes: lm-10m, gpt2, "),
        (["gpt-2"], "did you mean"),
        (["gpt2", "--variant", "Q-KK"], "did you mean"),
        (["gpt2", "--variant"], "requires at least 1"),
        (["gpt2", "--dtype", "int5"], "expected a format out of fp32, bf16"),
        (["gpt2", "--context", "0"], "context: expected at least 1, got 0"),
        (["gpt2", "--context", "1e9"], "context: expected a whole number"),
        (["gpt2", "--batch", "nan"], "batch: expected a whole number"),
        (["t5-small", "--encoder-tokens", "0"], "encoder_tokens: expected at least 1"),
        ([], "requires an argument"),
        (["gpt2", "gpt2"], "expected a variant"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1
    assert len(printed.err) < 600


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "expected one JSON object"),
        ("{}", "model_type"),
        (json.dumps({**LLAMA, "hidden_size": -1}), "hidden_size"),
        (json.dumps({**LLAMA, "num_key_value_heads": 5}), "divide 12 query heads"),
    ],
)
def test_bad_configurations_are_refused_in_a_sentence(
    content: str, says: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(content, "utf-8")
    assert main(["cost", str(config)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1


def test_absurd_sizes_are_counted_at_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    huge = {
        **LLAMA,
        "hidden_size": 2**40,
        "num_attention_heads": 2**20,
        "num_key_value_heads": 2**20,
        "intermediate_size": 2**40,
        "num_hidden_layers": 10_000,
        "vocab_size": 2**40,
    }
    config.write_text(json.dumps(huge), "utf-8")
    document = counted(capsys, str(config), "--context", str(2**40), "--batch", str(2**40))
    assert document["rows"][0]["cache_bytes"] == 2**80 * 10_000 * 2**41 * 2
    assert "EiB" in shown(capsys, str(config), "--context", str(2**40))
