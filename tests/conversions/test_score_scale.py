"""Scores at initialisation: an identity query makes them 1/(s sqrt d) times as large."""

import dataclasses
import math

import pytest
import torch

from qkvary.arch.attention import AttentionConfig, Initialization, InitScheme, ScaleConfig
from qkvary.arch.labels import parse_variant
from qkvary.nn.attention import Attention
from qkvary.nn.layout import Layout


def deviation(config: AttentionConfig) -> float:
    """The deviation of scores of unit-variance inputs, over several first values."""
    generator = torch.Generator().manual_seed(3)
    found: list[float] = []
    for seed in range(4):
        layer = Attention(config, seed=seed)
        x = torch.randn(1, 64, config.d_model, generator=generator)
        with torch.no_grad():
            layout = Layout(new_tokens=64)
            scores = layer.score(layer.read(x, layout), layout)
            found.append(float(scores.multiply().square().mean()))
    return math.sqrt(sum(found) / len(found))


@pytest.mark.parametrize("scheme", ["normal", "torch"])
@pytest.mark.parametrize("d_model", [64, 192])
def test_larger_by_the_inverse_of_s_sqrt_d(scheme: InitScheme, d_model: int) -> None:
    baseline = AttentionConfig(
        d_model=d_model,
        num_heads=4,
        bias=False,
        init=Initialization(scheme=scheme),
        scale=ScaleConfig(identity="none"),
    )
    identity = dataclasses.replace(baseline, variant=parse_variant("I-K-V"))
    learned = baseline.projection_std * math.sqrt(d_model)
    ratio = deviation(identity) / deviation(baseline)
    assert ratio == pytest.approx(1 / learned, rel=0.06)
    derived = dataclasses.replace(identity, scale=ScaleConfig())
    assert deviation(derived) == pytest.approx(deviation(baseline), rel=0.06)
