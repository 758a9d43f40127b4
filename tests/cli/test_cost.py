"""``qkvary cost``: the documented JSON, figures of the cost functions, on a screen of any width."""

from pathlib import Path

from tests.conftest import Typed
from tests.data.test_model_configs import LLAMA, write

HEADS = {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 4}
CHANGES = {**HEADS, "num_hidden_layers": 5, "max_position_embeddings": 4096}


def test_gpt2_by_hand(typed: Typed) -> None:
    row = typed.json("cost", "gpt2", "--context", "1000")["rows"][0]
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


def test_a_variant_that_does_not_fit_is_a_note(typed: Typed) -> None:
    document = typed.json("cost", "300M", "--variant", "GQA-3", "MQA")
    assert [row["variant"] for row in document["rows"] if not row["stored"]] == ["QKV", "MQA"]
    assert any(note.startswith("GQA-3 does not fit lm-300m: ") for note in document["notes"])
    printed, said = typed.both("cost", "300M", "--variant", "GQA-3")
    assert "  - GQA-3 does not fit lm-300m" in printed
    assert said == ""


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path, typed: Typed) -> None:
    config = write(tmp_path / "tiny" / "config.json", {**LLAMA, **CHANGES})
    by_file, by_folder = typed.json("cost", config), typed.json("cost", config.parent)
    assert by_file == by_folder
    assert by_file["model"] == "tiny"
    assert by_file["context"] == 4096
    # Two tensors of 4 heads of 8 in 16 bits, in 5 layers.
    assert by_file["rows"][0]["cache_bytes_per_token"] == 2 * 4 * 8 * 2 * 5
