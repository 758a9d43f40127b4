"""The vision transformer: equal to plain arithmetic, counted exactly, refusing what is wrong."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qkvary.arch.attention import AttentionConfig, PositionConfig, ScaleConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, NormPlacement, VisionTransformerConfig
from qkvary.costs.network import network_costs
from qkvary.nn.vision_transformer import VisionTransformer

LABELS = ("QKV", "(Q=K-V)+", "Q-K=V", "MQA", "I-K=V")


def make(
    label: str = "QKV", *, norm: NormPlacement = "pre-only", **fields: Any
) -> VisionTransformerConfig:
    given: dict[str, Any] = {
        "attention": AttentionConfig(
            d_model=12,
            num_heads=3,
            variant=parse_variant(label),
            bias=False,
            scale=ScaleConfig(by="width"),
            position=PositionConfig(plus_features=7),
        ),
        "block": BlockConfig(d_ff=11, norm_placement=norm),
        "num_layers": 2,
        "image_size": 15,
        "patch_size": 5,
        "channels": 2,
        "classes": 13,
        "d_head": 17,
    }
    return VisionTransformerConfig(**(given | fields))


def normalise(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def reference(weights: dict[str, Tensor], image: Tensor) -> Tensor:
    """QKV as the published code defines it, for one image and with plain loops over patches."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(
            f"{name}.bias", torch.zeros(1).double()
        )

    rows: list[Tensor] = [weights["class_token"][0]]
    for top in range(0, 15, 5):
        for left in range(0, 15, 5):
            numbers = [
                image[channel, top + row, left + column]
                for row in range(5)
                for column in range(5)
                for channel in range(2)
            ]
            rows.append(linear("patch", torch.stack(numbers)))
    x = torch.stack(rows) + weights["position_embedding"]
    for layer in range(2):
        block = f"stack.blocks.{layer}"
        inner = normalise(x, weights, f"{block}.attention_norm")
        q, k, v = (inner @ weights[f"{block}.attention.{one}_proj.weight"].T for one in "qkv")
        heads = [
            torch.softmax(q[:, at] @ k[:, at].T / math.sqrt(12), -1) @ v[:, at]
            for at in (slice(0, 4), slice(4, 8), slice(8, 12))
        ]
        x = x + linear(f"{block}.attention.o_proj", torch.cat(heads, -1))
        inner = normalise(x, weights, f"{block}.feed_forward_norm")
        x = x + linear(
            f"{block}.feed_forward.down", gelu(linear(f"{block}.feed_forward.up", inner))
        )
    return linear("head_out", gelu(linear("head_in", x[0])))


def test_logits_equal_those_of_plain_arithmetic() -> None:
    model = VisionTransformer(make(), seed=3).double().eval()
    images = torch.randn(2, 2, 15, 15, dtype=torch.float64)
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    expected = torch.stack([reference(weights, image) for image in images])
    torch.testing.assert_close(model(images), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("label", LABELS)
def test_costs_are_those_of_what_is_built(label: str) -> None:
    config = make(label)
    model, costs = VisionTransformer(config).eval(), network_costs(config)
    assert costs.parameters.total == sum(one.numel() for one in model.parameters())
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 2, 15, 15))
    assert costs.macs_per_sequence == counter.get_total_flops() // 2
    assert (costs.length, costs.cache_bytes_per_token) == (10, None)


def test_attention_maps_are_those_of_the_forward_pass() -> None:
    model = VisionTransformer(make("(Q=K-V)+"), seed=3).eval()
    maps = model.attention_maps(torch.randn(2, 2, 15, 15))
    assert maps.shape == (2, 2, 3, 10, 10)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 2, 3, 10))


def test_dropout_on_the_input_is_for_training() -> None:
    model = VisionTransformer(make(input_dropout=0.5, d_head=None), seed=3)
    image = torch.randn(1, 2, 15, 15)
    assert torch.equal(model.eval()(image), model(image))
    assert not torch.equal(model.train()(image), model(image))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 32, "patch_size": 7}, "divides image_size 32, got 7; choices: 2, 4, 8, 16"),
        ({"patch_size": 0}, "expected a positive patch_size of a vision transformer"),
        ({"input_dropout": 1.0}, r"expected input_dropout in \[0, 1\), got 1.0"),
        (
            {"attention": AttentionConfig(d_model=12, num_heads=3, causal=True)},
            "expected bidirectional attention over patches, got a causal layer",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**fields)
