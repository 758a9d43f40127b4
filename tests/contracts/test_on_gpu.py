"""On a GPU every variant computes what the CPU computes: forward, gradients, decoding, backends."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.inference import beams, decoding
from qkvary.inference.requests import Request, Sampling
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import (
    DECISIVE,
    EVERY_LABEL,
    FUSED,
    GATE,
    LABELS,
    distance,
    feed_network,
    make_config,
    make_language_model_config,
    padding_mask,
    random_input,
    randomize,
)

DEVICE = "cuda"
BFLOAT16 = 2e-2
"""Largest relative deviation of outputs, for bfloat16 operands."""
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def gpu() -> None:
    """These tests are asked for where there is a GPU."""
    assert torch.cuda.is_available(), "expected a GPU"


def gradients(module: nn.Module, output: Tensor) -> dict[str, Tensor]:
    """The gradients of a sum of squares, by name, on the CPU."""
    module.zero_grad()
    output.square().sum().backward()
    found = ((name, one.grad) for name, one in module.named_parameters())
    return {name: grad.cpu() for name, grad in found if grad is not None}


@pytest.mark.parametrize("label", EVERY_LABEL)
def test_a_layer_and_its_gradients(label: str) -> None:
    """In float64, with padding and without."""
    fields: dict[str, Any] = {} if label not in FUSED else {"kernel": "auto"}
    layer = Attention(make_config(label, causal=label in LABELS, **fields)).double()
    randomize(layer, 1)
    other = copy.deepcopy(layer).to(DEVICE)
    x = random_input(2)
    for mask in (None, padding_mask()):
        real = torch.ones_like(padding_mask()) if mask is None else mask
        given = {"attention_mask": mask}
        there = {"attention_mask": None if mask is None else mask.to(DEVICE)}
        expected, found = layer(x, **given), other(x.to(DEVICE), **there)
        assert found.device.type == DEVICE
        assert distance(found.cpu()[real], expected[real]) < GATE
        wanted = gradients(layer, expected * real[..., None])
        got = gradients(other, found * real[..., None].to(DEVICE))
        assert got.keys() == wanted.keys()
        for name, grad in wanted.items():
            scale = grad.abs().max().clamp(min=1e-3)
            assert (got[name] - grad).abs().max() / scale < 1e3 * GATE, name


def make_networks(label: str) -> tuple[LanguageModel, LanguageModel]:
    """One network on the CPU and on the GPU."""
    network = LanguageModel(make_language_model_config(label)).double().eval()
    randomize(network, 3)
    return network, copy.deepcopy(network).to(DEVICE)


@pytest.mark.parametrize("label", LABELS)
def test_a_language_model_decodes(label: str) -> None:
    """Chunks and single tokens, as the CPU does in one pass."""
    network, other = make_networks(label)
    tokens = torch.randint(13, (3, 11), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        expected = network(tokens)
        cache = KVCache(other.config.layers)
        found = feed_network(other, tokens.to(DEVICE), [5, 3, 1, 1, 1], cache)
    assert distance(found.cpu(), expected) < 10 * GATE


def ask(network: LanguageModel, **more: Any) -> list[tuple[int, ...]]:
    """The answers to three prompts, two of them padded."""
    prompts = ((1, 2, 3, 4), (5,), (6, 7))
    requests = [Request(prompt=one, max_new_tokens=5, **more) for one in prompts]
    return [one.tokens for one in decoding.complete(network, requests)]


@pytest.mark.parametrize("label", DECISIVE)
def test_generation(label: str) -> None:
    """Greedy, sampled with a seed, and by beams."""
    network, other = make_networks(label)
    assert ask(other) == ask(network)
    sampled = ask(other, sampling=Sampling(temperature=0.8, top_k=5), seed=1)
    assert all(0 <= token < 13 for answer in sampled for token in answer)
    request = Request(prompt=(1, 2, 3), max_new_tokens=4)
    expected, found = (beams.search(one, request, beams=3) for one in (network, other))
    assert [beam.tokens for beam in found] == [beam.tokens for beam in expected]


def fused_layer(label: str) -> Attention:
    """A layer of a usual width of heads."""
    config = AttentionConfig(
        d_model=256, num_heads=4, variant=parse_variant(label), causal=True, kernel="sdpa"
    )
    layer = Attention(config).double()
    randomize(layer, 10)
    return layer


@pytest.mark.parametrize(
    ("label", "backend"),
    [
        (label, backend)
        for label in ("QKV", "Q-K=V", "GQA-2", "Q-MQA", "Q-K=V@rotary", "Q=K=V")
        for backend in BACKENDS
        # That one has no form for heads that share keys.
        if backend != "efficient" or parse_variant(label).num_kv_heads is None
    ],
)
def test_fused_backends(label: str, backend: str) -> None:
    """In bfloat16, forward and backward, against float64 on the CPU."""
    layer = fused_layer(label)
    x = torch.randn(2, 96, 256, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    x = x.to(torch.bfloat16).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    other = copy.deepcopy(layer).to(DEVICE, torch.bfloat16)
    expected = layer(x)
    with sdpa_kernel(BACKENDS[backend]):
        found = other(x.to(DEVICE, torch.bfloat16))
        got = gradients(other, found.float())
    assert relative(found.cpu(), expected) < BFLOAT16
    wanted = gradients(layer, expected)
    for name in {"o_proj.weight", "k_proj.weight"} & {*wanted}:
        assert relative(got[name], wanted[name]) < 3 * BFLOAT16, name


def relative(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference over that of what is expected."""
    return float((found.double() - expected).detach().norm() / expected.detach().norm())
