"""The matrices of a network are ``nn.Linear`` for the tools that know these."""

import copy

import pytest
import torch
from torch import Tensor, nn

import qkvary as qk
from qkvary.arch.caches import CacheOptions
from qkvary.nn.attention import Attention
from qkvary.nn.decoding import step

LABELS = ("QKV", "Q-MQA@rotary", "I-K-V", "Q-K=V@decoupled-4@latent-6@kv-norm")


class LowRankAdapter(nn.Module):
    """LoRA as libraries have it: the old layer, and a product of two matrices in addition."""

    def __init__(self, base: nn.Linear, rank: int = 3) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))

    def merged(self) -> nn.Linear:
        layer = copy.deepcopy(self.base)
        with torch.no_grad():
            layer.weight += self.lora_B.weight @ self.lora_A.weight
        return layer


def adapt(network: nn.Module) -> nn.Module:
    """Give every linear layer an adapter, as tools find them: by type, wherever they are."""
    for name, layer in list(network.named_modules()):
        if type(layer) is nn.Linear:
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, LowRankAdapter(layer))
    return network


def merge(network: nn.Module) -> nn.Module:
    for name, layer in list(network.named_modules()):
        if isinstance(layer, LowRankAdapter):
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, layer.merged())
    return network


def make_network(label: str) -> qk.LanguageModel:
    return qk.LanguageModel(
        d_model=24,
        num_heads=4,
        num_layers=2,
        vocabulary=11,
        max_tokens=19,
        variant=label,
        seed=3,
    ).eval()


@pytest.mark.parametrize("label", LABELS)
def test_adapters_take_effect(label: str) -> None:
    torch.manual_seed(5)
    plain = make_network(label)
    adapted = adapt(copy.deepcopy(plain))
    merged = merge(copy.deepcopy(adapted))
    found = {n.split(".")[-2] for n, _ in adapted.named_modules() if n.endswith("lora_A")}
    learned = {f"{source}_proj" for source in plain.config.layers[0].variant.projections}
    assert learned | {"o_proj", "up", "down"} <= found
    tokens = torch.randint(11, (2, 17))
    with torch.no_grad():
        expected = merged(tokens)
        assert (adapted(tokens) - expected).abs().max() < 1e-4
        assert (plain(tokens) - expected).abs().max() > 1e-2
        # With a cache, a token at a time.
        for kernel in ("layer", "matmul"):
            cache = qk.KVCache(adapted.config.layers, options=CacheOptions(kernel=kernel))
            steps = [adapted(tokens[:, i : i + 1], cache=cache) for i in range(17)]
            assert (torch.cat(steps, dim=1) - expected).abs().max() < 1e-4
            assert not step.supports(adapted, cache)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("training", [False, True])
def test_hooks_of_projections_fire(label: str, training: bool) -> None:
    layer = Attention(d_model=20, num_heads=4, variant=label).train(training)
    x, calls = torch.randn(2, 40, 20), list[str]()
    names = [n for n, part in layer.named_modules() if isinstance(part, nn.Linear)]
    before = layer(x)
    for name in names:
        layer.get_submodule(name).register_forward_hook(lambda *_, n=name: calls.append(n))
    with torch.set_grad_enabled(training):
        after = layer(x)
    assert sorted(calls) == sorted(names)
    assert (after - before).abs().max() < 1e-5
    layer.get_submodule(names[0]).register_forward_hook(lambda _, __, out: 2.0 * out)
    assert (layer(x) - before).abs().max() > 1e-3
