"""The networks that engines are compared on: random weights, embeddings of deviation 0.02."""

from dataclasses import replace

import torch

from qkvary.arch.named_networks import make_portable, modern_network
from qkvary.arch.networks import LanguageModelConfig
from qkvary.nn.language_model import LanguageModel

VARIANTS = {
    "QKV": "QKV@rotary",
    "GQA-2": "GQA-2@rotary",
    "Q-K=V": "Q-K=V@decoupled-16@kv-norm",
    "Q-GQA-4": "Q-GQA-4@decoupled-16@kv-norm",
    "Q-GQA-2": "Q-GQA-2@decoupled-16@kv-norm",
    "Q-MQA": "Q-MQA@decoupled-16@kv-norm",
    "MLA": "Q-K=V@decoupled-16@latent-128@kv-norm",
}
"""Portable forms by a short name; those of separate keys and values rotate whole heads, as every
engine does."""
SIZES = {
    "tiny": {"d_model": 64, "num_heads": 4, "num_layers": 2, "vocabulary": 257},
    "30M": {"d_model": 512, "num_heads": 8, "num_layers": 8, "vocabulary": 4096},
    "124M": {"d_model": 768, "num_heads": 12, "num_layers": 12, "vocabulary": 50257},
}
EMBEDDING_STD, GAIN = 0.02, 1.3


def make_config(size: str, variant: str, max_tokens: int) -> LanguageModelConfig:
    """Return the configuration of a case."""
    label = VARIANTS[variant]
    if "@decoupled" in label:
        return make_portable(modern_network(**SIZES[size], max_tokens=max_tokens), label)
    base = modern_network(**SIZES[size], max_tokens=max_tokens, variant=label)
    layer = base.layers[0]
    position = replace(layer.position, rotary_fraction=1.0)
    return replace(base, attention=replace(layer, position=position))


@torch.no_grad()
def make_network(config: LanguageModelConfig, seed: int = 0) -> LanguageModel:
    """Return a network whose logits are far enough apart that a greedy text is decided."""
    network, draws = LanguageModel(config), torch.Generator().manual_seed(seed)
    for name, weight in network.named_parameters():
        drawn = torch.randn(weight.shape, generator=draws)
        if "norm" in name:
            weight.copy_(1 + 0.2 * drawn)
        elif name == "embedding":
            weight.copy_(EMBEDDING_STD * drawn)
        else:
            weight.copy_(GAIN * drawn / weight.shape[1] ** 0.5)
    return network.eval()
