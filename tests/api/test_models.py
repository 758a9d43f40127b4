"""All forms of an argument are read; anything else gets one clear sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: qk.cost("lm-30"), "got 'lm-30'; did you mean the named size lm-30m?"),
        (lambda: qk.cost(3), "expected a model as its name, its path, a configuration"),
        (lambda: qk.cost("300M", "Z"), "expected a variant such as Q-K=V or q,k=v, got 'Z'"),
        (lambda: qk.cost("300M", 3), "expected a variant or its label such as 'Q-K=V', got 3"),
        (lambda: qk.cost("300M", context=1.5), "expected a whole number such as"),
        (lambda: qk.plan("300M", gpu="t4", goal="fame"), "goal out of serving, training, got"),
        (lambda: qk.plan("300M", gpu="t4", task="poem"), "task out of causal, set, image"),
        (lambda: qk.plan("300M", gpu="t4", users=True), "expected a whole number"),
        (lambda: qk.variants(model="300M", d_model=8), "expected a model or sizes of a layer"),
        (lambda: qk.variants(model="deepseek-v2-lite"), "whose layers project to queries"),
        (lambda: qk.Attention(d_model=8), "expected d_model, num_heads, got no num_heads"),
        (lambda: qk.Attention(8), "expected an AttentionConfig, or d_model, num_heads by name"),
        (lambda: qk.LanguageModel("lm-10"), "expected a network, got 'lm-10'; did you mean"),
        (lambda: qk.LanguageModel("lm-10m", d_model=8), "expected a configuration or sizes"),
        (lambda: qk.generate("nowhere", "a"), "expected a checkpoint, got nowhere"),
        (lambda: qk.run_study("quickstrt"), "did you mean quickstart?"),
    ],
)
def test_what_makes_no_sense_gets_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the message is compared below
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
