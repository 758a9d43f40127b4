"""``qkvary cost``: the documented JSON, figures of the cost functions, on a screen of any width."""

from tests.conftest import Typed


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
