"""Small networks whose logits are far enough apart that greedy text is unambiguous."""

from typing import Any

import torch

from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.nn.language_model import LanguageModel
from tests.small_networks import small_config

VOCABULARY, LONGEST = 23, 61


def make_config(label: str, *, max_tokens: int = LONGEST) -> LanguageModelConfig:
    """As GPT-2, or as Llama or DeepSeek where it rotates."""
    rotary = "@rotary" in label or "@decoupled" in label
    form: dict[str, Any] = (
        {"norm": "rmsnorm", "activation": "swiglu", "bias": False} if rotary else {}
    )
    return small_config(
        label,
        d_model=20,
        num_heads=2,
        rotary_fraction=1.0,
        value_rope="none",
        **({"bias": False, "out_bias": False} if "@decoupled" in label else {}),
        block=BlockConfig(d_ff=33, **form),
        num_layers=3,
        vocabulary=VOCABULARY,
        max_tokens=max_tokens,
        positions="none" if rotary else "learned",
    )


def make_network(label: str) -> LanguageModel:
    """With a wide spread of weights."""
    model = LanguageModel(make_config(label), seed=3).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model
