"""All forms of an argument are read; anything else gets one clear sentence."""

from pathlib import Path

import torch

import qkvary as qk
from qkvary.arch.labels import parse_variant
from qkvary.arch.models import as_model
from qkvary.arch.named_networks import find_network
from qkvary.checkpoints.models import save_model
from qkvary.nn.attention import Attention


def test_a_model_is_a_name_a_value_a_network_or_a_checkpoint(tmp_path: Path) -> None:
    network = find_network("lm-10m")
    named = qk.cost("lm-10m", "Q-K=V").to_dict()
    model = qk.LanguageModel("lm-10m")
    save_model(tmp_path / "model", model)
    for given in (as_model(network), network, model, qk.load(tmp_path / "model")):
        found = qk.cost(given, [parse_variant("Q-K=V")]).to_dict()
        assert found["rows"] == named["rows"]
    assert qk.cost("10M", "q,k=v").to_dict() == named


def test_a_layer_by_sizes_is_the_layer_of_its_configuration() -> None:
    layer = qk.Attention(d_model=42, num_heads=7, variant="Q-K=V", causal=True, seed=3)
    assert type(layer) is Attention
    same = qk.Attention(layer.config, seed=3)
    for one, other in zip(layer.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)
    assert layer.config.variant == parse_variant("Q-K=V")
    bare = qk.Attention(d_model=42, num_heads=7, bias=False, head_dim=5, dropout=0.5)
    assert [name for name, _ in bare.named_parameters() if "bias" in name] == []
    assert (bare.config.size_per_head, bare.config.dropout, bare.config.causal) == (5, 0.5, False)


def test_a_network_is_a_name_or_its_sizes() -> None:
    model = qk.LanguageModel("LM_10M", variant="Q-MQA")
    assert model.config == find_network("lm-10m", "Q-MQA")
    sizes = {"d_model": 24, "num_heads": 3, "num_layers": 2, "vocabulary": 11, "max_tokens": 13}
    own = qk.LanguageModel(**sizes, variant="Q-K=V", seed=5)
    assert own.config.layers[0].variant == parse_variant("Q-K=V@rotary")
    assert torch.equal(own.embedding, qk.LanguageModel(own.config, seed=5).embedding)
