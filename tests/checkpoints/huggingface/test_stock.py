"""Our networks as GPT-2 and Llama: equal logits where expressible, else a reason."""

import dataclasses
import itertools
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkvary.arch.attention import PositionConfig, ScaleConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import Activation, BlockConfig, LanguageModelConfig, Positions
from qkvary.arch.rotary import RotaryScaling
from qkvary.checkpoints.huggingface.stock import export_stock
from qkvary.checkpoints.stock_names import StockArchitecture
from qkvary.nn.language_model import LanguageModel
from tests.checkpoints.gguf.test_networks import build, rotary_config
from tests.checkpoints.huggingface.causal_models import make_network, prompt
from tests.contracts.variant_cases import (
    GATE,
    LABELS,
    distance,
    make_config,
    make_language_model_config,
)
from tests.pairwise import pairwise

TOKENS = 11
SWIGLU = BlockConfig(d_ff=11, activation="swiglu", norm="rmsnorm", bias=False)
ROTARY = PositionConfig(rotary_fraction=1.0, rotary_base=500.0, value_rope="none")
LLAMA = ("QKV", "Q=K-V", "Q-K=V", "Q=V", "Q=K=V", "GQA-2", "Q-MQA", "I-K=V", "Q-I-V", "I-I-V")


def llama_config(label: str, **fields: Any) -> LanguageModelConfig:
    """Full rotation, an even head, and values that are not rotated."""
    return rotary_config(label, fraction=1.0, block=SWIGLU, bias=True, out_bias=True, **fields)


class DoubleRotation(nn.Module):
    """Llama's rotation, which transformers computes in 32 bits whatever the model's numbers."""

    def __init__(self, base: float, width: int) -> None:
        super().__init__()
        self.frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)

    def forward(self, _: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].double() * self.frequencies
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()


class DoubleNorm(nn.Module):
    """Likewise for its norm."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()


def in_double_precision(model: Any) -> Any:
    config = model.config
    width = getattr(config, "qk_rope_head_dim", None) or config.head_dim
    model.model.rotary_emb = DoubleRotation(config.rope_parameters["rope_theta"], width)
    for name, norm in list(model.named_modules()):
        if type(norm).__name__.endswith("RMSNorm"):
            parent, _, own = name.rpartition(".")
            double = DoubleNorm(norm.weight, norm.variance_epsilon)
            setattr(model.get_submodule(parent), own, double)
    return model


@torch.no_grad()
def logits_of(model: Any) -> Tensor:
    return model(prompt(3, TOKENS)).logits


@torch.no_grad()
def expected_logits(network: LanguageModel) -> Tensor:
    return network(prompt(3, TOKENS))


def failure_of(label: str) -> str | None:
    """Why a variant cannot be expressed: the first reason that holds."""
    variant = parse_variant(label)
    reasons = {
        "a norm of the shared key-value tensor": variant.kv_norm,
        "keys and values that are made of one latent": variant.latent is not None,
        "norms of query and key": variant.head_norm != "none",
        "decoupled positions; choices: none, rotary": variant.decoupled is not None,
        "attention weights that decay with the distance": variant.decay != "none",
        "scores whose diagonal is normalised": variant.diagonal != "none",
        "a soft cap on the scores": variant.soft_cap is not None,
        "the bias that the position term '+' adds to the scores": variant.plus,
        "a bias that is added to the scores of every key position": variant.key_bias,
        "positions; choices: none, rotary": variant.positions not in {"none", "rotary"},
        "a nonlinear query; choices: plain, residual, map": variant.query_form == "residual-gelu",
        "a window of 3 tokens": variant.window is not None,
        "a stride of 2 tokens": variant.stride is not None,
        f"the core {variant.core}; choices: softmax": variant.core != "softmax",
        "keys with 2 of 5 channels rotated; set rotary_fraction to 1": "@rotary" in label,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@pytest.mark.parametrize("label", LABELS)
def test_gpt2_gives_equal_logits_or_a_reason(label: str) -> None:
    rotary = "@rotary" in label
    network = make_network(label, positions="none" if rotary else "learned")
    failure = failure_of(label)
    to: StockArchitecture = "llama" if rotary else "gpt2"
    if failure is None:
        stock = export_stock(network)
        assert stock.config.model_type == "gpt2"
        assert distance(logits_of(stock.build()), expected_logits(network)) < GATE
        return
    name = "Llama" if rotary else "GPT-2"
    pattern = f"^expected a network that {name} can express, got .*{re.escape(failure)}"
    with pytest.raises(ValueError, match=pattern):
        export_stock(network, to)


@pairwise(
    "positions, activation, plain",
    itertools.product(
        ["none", "learned", "sinusoidal", "sinusoidal-halves"],
        ["gelu", "gelu-tanh", "relu"],
        [True, False],
    ),
    together=1,
    ids=str,
)
def test_gpt2_gives_equal_logits_for_every_block(
    positions: Positions, activation: Activation, plain: bool
) -> None:
    config = make_language_model_config("Q-K=V", positions=positions, tied_head=not plain)
    attention = dataclasses.replace(
        config.layers[0], bias=not plain, out_bias=not plain, scale=ScaleConfig(by="width")
    )
    block = BlockConfig(d_ff=11, activation=activation, bias=not plain)
    network = build(dataclasses.replace(config, attention=attention, block=block)).double()
    stock = export_stock(network)
    assert distance(logits_of(stock.build()), expected_logits(network)) < GATE
    half = export_stock(network.float())
    assert half.weights["transformer.wpe.weight"].dtype == torch.float32
    assert distance(logits_of(half.build()).double(), expected_logits(network).double()) < 1e-5


@pytest.mark.parametrize("label", LLAMA)
def test_llama_gives_equal_logits(label: str) -> None:
    network = build(llama_config(label)).double()
    stock = export_stock(network)
    assert stock.config.model_type == "llama"
    expected = expected_logits(network)
    assert distance(logits_of(in_double_precision(stock.build())), expected) < GATE
    single = export_stock(network.float())
    assert distance(logits_of(single.build()).double(), expected) < 1e-5


@pytest.mark.parametrize(
    ("labels", "num_heads", "kv_heads"),
    [
        (("QKV", "Q-MQA"), 4, 4),
        (("Q-K=V", "GQA-2"), 4, 4),
        (("Q=K=V", "Q-K=V/2"), 4, 4),
        (("GQA-3", "Q-MQA"), 6, 3),
        (("GQA-3", "GQA-2"), 6, 6),
    ],
)
def test_layers_may_share_in_different_ways(
    labels: tuple[str, str], num_heads: int, kv_heads: int
) -> None:
    """KV heads are copied as little as possible."""
    kinds = [llama_config(label, num_heads=num_heads).layers[0] for label in labels]
    config = dataclasses.replace(llama_config("QKV"), attention=tuple(kinds))
    network = build(config).double()
    stock = export_stock(network)
    assert stock.config.num_key_value_heads == kv_heads
    assert distance(logits_of(in_double_precision(stock.build())), expected_logits(network)) < GATE


LAYER = make_config("QKV", causal=True)
GPT2_REFUSED: dict[str, dict[str, Any]] = {
    "the norm placement post": {"block": BlockConfig(d_ff=11, norm_placement="post")},
    "scaled embeddings": {"scale_embedding": True},
    "a bias on the logits": {"head_bias": True},
    "parallel sublayers": {"block": BlockConfig(d_ff=11, parallel=True)},
    "rmsnorm": {"block": BlockConfig(d_ff=11, norm="rmsnorm")},
    "4 heads of 7 channels": {"attention": make_config("QKV", causal=True, head_dim=7)},
    "layers that differ in the number or width": {
        "attention": (LAYER, dataclasses.replace(LAYER, num_heads=5))
    },
}
SHARED = llama_config("Q-K=V").layers[0]


def turned(**fields: Any) -> Any:
    """A layer with other rotary positions."""
    return dataclasses.replace(SHARED, position=dataclasses.replace(ROTARY, **fields))


LLAMA_REFUSED: dict[str, dict[str, Any]] = {
    "values that are rotated keys (counter)": {"attention": turned(value_rope="counter")},
    "layers with different rotary bases": {"attention": (SHARED, turned(rotary_base=600.0))},
    "layers with different rotary scalings": {
        "attention": (SHARED, turned(scaling=RotaryScaling(form="linear", factor=2.0)))
    },
    "rmsnorm-plus-one": {"block": dataclasses.replace(SWIGLU, norm="rmsnorm-plus-one")},
    "a width of 26": {"attention": dataclasses.replace(SHARED, d_model=26)},
    "rotary positions in some layers only": {
        "attention": (SHARED, dataclasses.replace(SHARED, variant=parse_variant("Q-K=V")))
    },
    "gelu": {"block": dataclasses.replace(SWIGLU, activation="gelu")},
}


@pytest.mark.parametrize("reason", [*GPT2_REFUSED, *LLAMA_REFUSED])
def test_networks_that_cannot_be_expressed_are_rejected(reason: str) -> None:
    is_gpt2 = reason in GPT2_REFUSED
    config = make_language_model_config("QKV") if is_gpt2 else llama_config("Q-K=V")
    fields = (GPT2_REFUSED if is_gpt2 else LLAMA_REFUSED)[reason]
    network = LanguageModel(dataclasses.replace(config, **fields))
    name = "GPT-2" if is_gpt2 else "Llama"
    with pytest.raises(ValueError, match=f"{name} can express, got one with {re.escape(reason)}"):
        export_stock(network)
