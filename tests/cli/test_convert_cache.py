"""``qkvary convert --to``: the price of a smaller cache, a folder, and what other programs read."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import qkvary as qk
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.huggingface.stock import export_stock
from qkvary.checkpoints.models import load_model, save_model
from qkvary.costs.cache import cache_bytes_per_token
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.nn.language_model import LanguageModel
from tests.checkpoints.equal_networks import same_weights
from tests.conftest import Typed
from tests.contracts.variant_cases import distance
from tests.conversions.caches.networks import make_config, make_network

SMALL = ["--tokens", "600", "--held-out-tokens", "100", "--context", "20"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The sea was calm, and the day was long. " * 30 + "A ship came in. " * 30)
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = dataclasses.replace(make_config("GQA-2@rotary"), vocabulary=256)
    save_model(tmp_path / "net", make_network(config).float(), ByteTokenizer())
    return tmp_path / "net"


def words_of(checkpoint: Path, text: Path, *words: object) -> tuple[object, ...]:
    return ("convert", checkpoint, "--data", text, *SMALL, *words)


def test_a_folder_with_the_price_of_it(
    checkpoint: Path, text: Path, tmp_path: Path, typed: Typed
) -> None:
    out = tmp_path / "made"
    words = ("--to", "latent", "--cache", "50%", "--out", out, "--heal-tokens", "500")
    printed, said = typed.both(*words_of(checkpoint, text, *words))
    for part in ("Q-GQA-2@decoupled-8@latent-8", "64 B", "one shot", "refitted", f"written: {out}"):
        assert part in printed
    for part in ("as it is: loss ", "one shot: loss ", "refitted: loss ", "healed: loss "):
        assert part in said
    assert not (tmp_path / "made.healing").exists()
    made = load_model(out)
    before = load_model(checkpoint).network.config
    assert 2 * (cache_bytes_per_token(made.network.config) or 0) == cache_bytes_per_token(before)
    assert qk.generate(made, "abc", tokens=5)


def test_what_is_exported_says_the_same(
    checkpoint: Path, text: Path, tmp_path: Path, typed: Typed
) -> None:
    out = tmp_path / "made"
    typed(*words_of(checkpoint, text, "--to", "shared", "--cache", "60%", "--out", out))
    made = load_model(out)
    tokens = torch.arange(60).view(3, 20)
    with torch.no_grad():
        expected = made.network(tokens)
        stock = export_stock(made.network).build()
        assert distance(stock(tokens).logits, expected) < 1e-5
    for kind in ("deepseek", "gguf"):
        target = tmp_path / (kind + ".gguf" * (kind == "gguf"))
        qk.export(made, target, to=kind)
        again = load_checkpoint(str(target)).network
        assert again.config.variant == made.network.config.variant
        with torch.no_grad():
            assert distance(again(tokens), expected) < 1e-5
    assert same_weights(again, made.network)


def test_a_forecast_converts_nothing(checkpoint: Path, text: Path, typed: Typed) -> None:
    words = ("--to", "grouped", "--cache", "50%", "--dry-run")
    found = typed.json(*words_of(checkpoint, text, *words))
    assert [stage["name"] for stage in found["stages"]] == ["as it is"]
    assert found["forecast"]["divergence"] > 0
    assert found["forecast"]["cpu_seconds"] > 0
    assert found["cache_bytes_per_token"] == {"before": 128, "after": 64}
    assert [layer["after"] for layer in found["layers"]] == ["MQA@rotary"] * 2


def test_figures_in_python(checkpoint: Path, text: Path) -> None:
    options: dict[str, Any] = {"tokens": 600, "context": 99, "layers": "auto"}
    made = qk.convert(checkpoint, to="latent", bytes_per_token=90, data=text, **options)
    assert isinstance(made.value.network, LanguageModel)
    assert made.to_dict()["cache_share"] <= 90 / 128
    assert made.value.forecast is not None
    assert made.tables == ("stages", "costs", "layers")
    rows = [qk.cost(one).value.rows[0] for one in (checkpoint, made.value.network)]
    assert list(made.to_pandas("costs").macs_per_token) == [row.decode_macs.total for row in rows]
    assert "64 tokens instead of 99" in made.to_dict()["notes"][0]
