"""Both networks in float64; attention is that of this folder, and all else treats tokens alike."""

import math

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, EncoderConfig, LanguageModelConfig
from tests.reference.attention import Weights, attend, gelu, project, rows_of
from tests.reference.positions import sinusoid

HEAD_EPSILON = 1e-5
"""Of the norm in the head of an encoder."""


def encoder_logits(
    config: EncoderConfig, weights: Weights, tokens: Tensor, *, mask: Tensor | None = None
) -> Tensor:
    """One class per token, or per row: the published input is one-hot through a linear layer."""
    x = _embed(config, weights, tokens, mask=mask) + weights["embedding_bias"]
    x = _blocks(config, weights, x, mask=mask)
    if config.pooling == "mean":
        real = torch.ones(tokens.shape).bool() if mask is None else mask
        x = torch.stack([row[kept].mean(dim=0) for row, kept in zip(x, real, strict=True)])
    inner = project(weights, "head_in", x)
    hidden = normalise("layernorm", weights, "head_norm", inner, HEAD_EPSILON)
    return project(weights, "head_out", hidden * (hidden > 0))


def language_model_logits(
    config: LanguageModelConfig,
    weights: Weights,
    tokens: Tensor,
    *,
    mask: Tensor | None = None,
    documents: Tensor | None = None,
) -> Tensor:
    """The next token's logits at every token."""
    x = _embed(config, weights, tokens, mask=mask, documents=documents)
    x = _blocks(config, weights, x, mask=mask, documents=documents)
    head = weights["embedding" if config.tied_head else "head_weight"]
    found = x @ head.T + (weights["head_bias"] if config.head_bias else 0.0)
    cap = config.logit_cap
    return found if cap is None else cap * (2.0 / (1.0 + torch.exp(-2.0 * found / cap)) - 1.0)


def normalise(kind: str, weights: Weights, name: str, x: Tensor, epsilon: float) -> Tensor:
    """LayerNorm or RMSNorm of every token."""
    if kind == "none":
        return x
    centred = x - x.mean(dim=-1, keepdim=True) if kind == "layernorm" else x
    variance = centred.square().mean(dim=-1, keepdim=True)
    gain = weights[f"{name}.weight"] + (1.0 if kind == "rmsnorm-plus-one" else 0.0)
    bias = weights.get(f"{name}.bias", torch.tensor(0.0))
    return centred / torch.sqrt(variance + epsilon) * gain + bias


def feed_forward(config: BlockConfig, weights: Weights, x: Tensor) -> Tensor:
    """The feed-forward network on every token."""
    inner = project(weights, "up", x)
    if config.activation == "swiglu":
        gate = project(weights, "gate", x)
        inner = inner * gate / (1.0 + torch.exp(-gate))
    elif config.activation == "geglu-tanh":
        inner = inner * _gelu_by_tanh(project(weights, "gate", x))
    elif config.activation == "relu":
        inner = inner * (inner > 0)
    else:
        inner = gelu(inner) if config.activation == "gelu" else _gelu_by_tanh(inner)
    return project(weights, "down", inner)


def _embed(
    config: EncoderConfig | LanguageModelConfig,
    weights: Weights,
    tokens: Tensor,
    *,
    mask: Tensor | None = None,
    documents: Tensor | None = None,
) -> Tensor:
    batch, length = tokens.shape
    rows = rows_of(length, batch, mask=mask, documents=documents)
    places = torch.tensor([list(row.positions) for row in rows])
    x = weights["embedding"][tokens]
    width = x.shape[-1]
    if isinstance(config, LanguageModelConfig) and config.scale_embedding:
        x = x * width**0.5
    if config.positions == "learned":
        x = x + weights["position_embedding"][places]
    if config.positions.startswith("sinusoidal"):
        waves = [sinusoid(place, width + width % 2) for place in range(length)]
        if config.positions == "sinusoidal-halves":
            waves = [[*wave[0::2], *wave[1::2]] for wave in waves]
        x = x + torch.tensor(waves, dtype=x.dtype)[places, :width]
    return x


def _blocks(
    config: EncoderConfig | LanguageModelConfig,
    weights: Weights,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    documents: Tensor | None = None,
) -> Tensor:
    block, placement = config.block, config.block.norm_placement
    # Factors of what a skip adds.
    around = 1.0 if block.skips in {"both", "attention"} else 0.0
    feeding = 1.0 if block.skips in {"both", "feed-forward"} else 0.0
    for index, layer in enumerate(config.layers):
        own = _below(weights, f"stack.blocks.{0 if config.shared_blocks else index}.")

        def norm(name: str, x: Tensor, own: Weights = own) -> Tensor:
            return normalise(block.norm, own, f"{name}_norm", x, block.norm_eps)

        def mix(x: Tensor, own: Weights = own, layer: AttentionConfig = layer) -> Tensor:
            return attend(layer, _below(own, "attention."), x, mask=mask, documents=documents)

        def feed(x: Tensor, own: Weights = own) -> Tensor:
            return feed_forward(block, _below(own, "feed_forward."), x)

        if placement == "stream":
            x = norm("attention", x)
            x = norm("feed_forward", around * x + mix(x))
            x = feeding * x + feed(x)
        elif block.parallel:
            x = x + mix(norm("attention", x)) + feed(norm("feed_forward", x))
        elif placement == "output":
            x = around * x + norm("attention", mix(x))
            x = feeding * x + norm("feed_forward", feed(x))
        elif placement == "sandwich":
            x = around * x + norm("attention_output", mix(norm("attention", x)))
            x = feeding * x + norm("feed_forward_output", feed(norm("feed_forward", x)))
        elif placement in {"pre", "pre-only"}:
            x = around * x + mix(norm("attention", x))
            x = feeding * x + feed(norm("feed_forward", x))
        else:
            x = norm("attention", around * x + mix(x))
            x = norm("feed_forward", feeding * x + feed(x))
    if placement in {"pre-only", "post"}:
        return x
    return normalise(block.norm, weights, "stack.final_norm", x, block.norm_eps)


def _below(weights: Weights, prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}


def _gelu_by_tanh(z: Tensor) -> Tensor:
    """GPT-2's approximation (Hendrycks and Gimpel 2016, section 2)."""
    return 0.5 * z * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3)))
