"""The vision transformer: equal to the layers of torch, counted exactly, refusing what is wrong."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qkvary.arch.attention import AttentionConfig, PositionConfig, ScaleConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, VisionTransformerConfig
from qkvary.costs.network import network_costs
from qkvary.nn.vision_transformer import VisionTransformer

LABELS = ("QKV", "(Q=K-V)+", "Q-K=V", "MQA", "I-K=V")


def make(label: str = "QKV", **fields: Any) -> VisionTransformerConfig:
    given: dict[str, Any] = {
        "attention": AttentionConfig(
            d_model=12,
            num_heads=3,
            variant=parse_variant(label),
            bias=False,
            scale=ScaleConfig(by="width"),
            position=PositionConfig(plus_features=7),
        ),
        "block": BlockConfig(d_ff=11, norm_placement="pre-only"),
        "num_layers": 2,
        "image_size": 15,
        "patch_size": 5,
        "channels": 2,
        "classes": 13,
        "d_head": 17,
    }
    return VisionTransformerConfig(**(given | fields))


def reference(model: VisionTransformer, images: Tensor) -> Tensor:
    """QKV as the published code defines it, by the layers of torch; scores are scaled by width."""
    patches = F.unfold(images, 5, stride=5).unflatten(1, (2, 25)).transpose(1, 2).flatten(1, 2).mT
    x = torch.cat((model.class_token.expand(len(images), -1, -1), model.patch(patches)), dim=1)
    x = x + model.position_embedding
    for block in model.stack.blocks:
        layer = nn.TransformerEncoderLayer(
            12, 3, 11, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ).double()
        own = block.attention
        with torch.no_grad():
            query = own.q_proj.weight * (4 / 12) ** 0.5
            layer.self_attn.in_proj_weight.copy_(
                torch.cat((query, own.k_proj.weight, own.v_proj.weight))
            )
            layer.self_attn.in_proj_bias.zero_()
        for part, mine in (
            (layer.self_attn.out_proj, own.o_proj),
            (layer.norm1, block.attention_norm),
            (layer.norm2, block.feed_forward_norm),
            (layer.linear1, block.feed_forward.up),
            (layer.linear2, block.feed_forward.down),
        ):
            part.load_state_dict(mine.state_dict())
        x = layer.eval()(x)
    return model.head_out(F.gelu(model.head_in(x[:, 0])))


@torch.no_grad()
def test_logits_equal_those_of_the_layers_of_torch() -> None:
    model = VisionTransformer(make(), seed=3).double().eval()
    images = torch.randn(2, 2, 15, 15, dtype=torch.float64)
    torch.testing.assert_close(model(images), reference(model, images), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("label", LABELS)
def test_costs_are_those_of_what_is_built(label: str) -> None:
    config = make(label)
    model, costs = VisionTransformer(config).eval(), network_costs(config)
    assert costs.parameters.total == sum(one.numel() for one in model.parameters())
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 2, 15, 15))
    assert costs.macs_per_sequence == counter.get_total_flops() // 2
    assert (costs.length, costs.cache_bytes_per_token) == (10, None)


def test_dropout_on_the_input_is_for_training() -> None:
    model = VisionTransformer(make(input_dropout=0.5, d_head=None), seed=3)
    image = torch.randn(1, 2, 15, 15)
    assert torch.equal(model.eval()(image), model(image))
    assert not torch.equal(model.train()(image), model(image))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 32, "patch_size": 7}, "divides image_size 32, got 7"),
        ({"patch_size": 0}, "expected patch_size of VisionTransformerConfig in 1 "),
        ({"input_dropout": 1.0}, r"expected input_dropout in \[0, 1\), got 1.0"),
        (
            {"attention": AttentionConfig(d_model=12, num_heads=3, causal=True)},
            "expected bidirectional layers in a vision transformer, got a causal layer",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**fields)
