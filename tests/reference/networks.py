"""Both networks in float64, one token at a time; only attention looks at other tokens."""

import math

import torch
from torch import Tensor

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
        real = torch.ones(tokens.shape) if mask is None else mask
        means = [
            torch.stack([t for t, is_real in zip(row, kept, strict=True) if is_real]).mean(dim=0)
            for row, kept in zip(x, real.tolist(), strict=True)
        ]
        return torch.stack([_encoder_head(weights, mean) for mean in means])
    return torch.stack([torch.stack([_encoder_head(weights, t) for t in row]) for row in x])


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
    logits = [torch.stack([(head * token).sum(dim=1) for token in row]) for row in x]
    bias = weights["head_bias"] if config.head_bias else 0.0
    found = torch.stack(logits) + bias
    cap = config.logit_cap
    return found if cap is None else cap * (2.0 / (1.0 + torch.exp(-2.0 * found / cap)) - 1.0)


def normalise(kind: str, weights: Weights, name: str, token: Tensor, epsilon: float) -> Tensor:
    """LayerNorm or RMSNorm of one token."""
    size = len(token)
    centred = token - token.sum() / size if kind == "layernorm" else token
    variance = (centred * centred).sum() / size
    gain = weights[f"{name}.weight"] + (1.0 if kind == "rmsnorm-plus-one" else 0.0)
    result = centred / torch.sqrt(variance + epsilon) * gain
    return result + weights[f"{name}.bias"] if f"{name}.bias" in weights else result


def feed_forward(config: BlockConfig, weights: Weights, token: Tensor) -> Tensor:
    """The feed-forward network on one token."""
    inner = project(weights, "up", token)
    if config.activation == "swiglu":
        gate = project(weights, "gate", token)
        inner = inner * gate / (1.0 + torch.exp(-gate))
    elif config.activation == "geglu-tanh":
        inner = inner * _gelu_by_tanh(project(weights, "gate", token))
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
    sequences: list[Tensor] = []
    for row, ids in zip(rows, tokens.tolist(), strict=True):
        vectors: list[Tensor] = []
        for position, token in zip(row.positions, ids, strict=True):
            vector = weights["embedding"][token]
            if isinstance(config, LanguageModelConfig) and config.scale_embedding:
                vector = vector * len(vector) ** 0.5
            if config.positions == "learned":
                vector = vector + weights["position_embedding"][position]
            if config.positions.startswith("sinusoidal"):
                even = 2 * math.ceil(len(vector) / 2)
                table = sinusoid(position, even)
                if config.positions == "sinusoidal-halves":
                    table = [*table[0::2], *table[1::2]]
                table = table[: len(vector)]
                vector = vector + torch.tensor(table, dtype=vector.dtype)
            vectors.append(vector)
        sequences.append(torch.stack(vectors))
    return torch.stack(sequences)


def _blocks(
    config: EncoderConfig | LanguageModelConfig,
    weights: Weights,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    documents: Tensor | None = None,
) -> Tensor:
    for index, layer in enumerate(config.layers):
        own = _below(weights, f"stack.blocks.{0 if config.shared_blocks else index}.")
        attention, ffn = _below(own, "attention."), _below(own, "feed_forward.")
        # Factors of what a skip adds.
        around = 1.0 if config.block.skips in {"both", "attention"} else 0.0
        feeding = 1.0 if config.block.skips in {"both", "feed-forward"} else 0.0
        if config.block.norm_placement == "stream":
            x = _norm_all(config, own, "attention_norm", x)
            x = around * x + attend(layer, attention, x, mask=mask, documents=documents)
            x = _norm_all(config, own, "feed_forward_norm", x)
            x = feeding * x + _feed_all(config, ffn, x)
        elif config.block.parallel:
            first = attend(
                layer,
                attention,
                _norm_all(config, own, "attention_norm", x),
                mask=mask,
                documents=documents,
            )
            x = x + first + _feed_all(config, ffn, _norm_all(config, own, "feed_forward_norm", x))
        elif config.block.norm_placement == "output":
            change = attend(layer, attention, x, mask=mask, documents=documents)
            x = around * x + _norm_all(config, own, "attention_norm", change)
            change = _feed_all(config, ffn, x)
            x = feeding * x + _norm_all(config, own, "feed_forward_norm", change)
        elif config.block.norm_placement == "sandwich":
            read = _norm_all(config, own, "attention_norm", x)
            change = attend(layer, attention, read, mask=mask, documents=documents)
            x = around * x + _norm_all(config, own, "attention_output_norm", change)
            change = _feed_all(config, ffn, _norm_all(config, own, "feed_forward_norm", x))
            x = feeding * x + _norm_all(config, own, "feed_forward_output_norm", change)
        elif config.block.norm_placement in {"pre", "pre-only"}:
            read = _norm_all(config, own, "attention_norm", x)
            x = around * x + attend(layer, attention, read, mask=mask, documents=documents)
            read = _norm_all(config, own, "feed_forward_norm", x)
            x = feeding * x + _feed_all(config, ffn, read)
        else:
            x = around * x + attend(layer, attention, x, mask=mask, documents=documents)
            x = _norm_all(config, own, "attention_norm", x)
            x = feeding * x + _feed_all(config, ffn, x)
            x = _norm_all(config, own, "feed_forward_norm", x)
    final = config.block.norm_placement not in {"pre-only", "post"}
    return _norm_all(config, weights, "stack.final_norm", x) if final else x


def _encoder_head(weights: Weights, token: Tensor) -> Tensor:
    token = project(weights, "head_in", token)
    hidden = normalise("layernorm", weights, "head_norm", token, HEAD_EPSILON)
    return project(weights, "head_out", hidden * (hidden > 0))


def _norm_all(
    config: EncoderConfig | LanguageModelConfig, weights: Weights, name: str, x: Tensor
) -> Tensor:
    kind, eps = config.block.norm, config.block.norm_eps
    if kind == "none":
        return x
    return torch.stack(
        [torch.stack([normalise(kind, weights, name, t, eps) for t in row]) for row in x]
    )


def _feed_all(config: EncoderConfig | LanguageModelConfig, weights: Weights, x: Tensor) -> Tensor:
    return torch.stack(
        [torch.stack([feed_forward(config.block, weights, t) for t in row]) for row in x]
    )


def _below(weights: Weights, prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}


def _gelu_by_tanh(z: Tensor) -> Tensor:
    """GPT-2's approximation (Hendrycks and Gimpel 2016, section 2)."""
    return 0.5 * z * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3)))
