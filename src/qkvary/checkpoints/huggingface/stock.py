"""Our language models as stock architectures, GPT-2 or Llama, which any engine can run.

Shared weights are copied, because a stock architecture has three projections. The function is the
same up to rounding, but the savings of sharing are lost; ``StockExport.notes`` says how much.
Identity roles become unit matrices, low-rank products and maps are multiplied out, scales are
folded into the query.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from qkvary.arch.networks import LanguageModelConfig
from qkvary.costs.cache import cache_bytes_per_token
from qkvary.costs.parameters import network_parameters
from qkvary.nn.attention import Attention
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.positions import sinusoid
from qkvary.nn.role_maps import LinearMap, make_role_maps

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Weights = dict[str, Tensor]
StockArchitecture = Literal["gpt2", "llama"]
"""A stock architecture."""
_TITLES: dict[StockArchitecture, str] = {"gpt2": "GPT-2", "llama": "Llama"}
_ACTIVATIONS = {"gelu-tanh": "gelu_new"}
"""Names that differ in transformers."""
_KNOWN_TERMS = ("rotary", "temperature")
"""Score terms that a stock architecture has, or that weights can express."""
_TERMS = {
    "plus": "the bias of + on every key position",
    "diagonal": "a normalised diagonal of scores",
    "unscaled-diagonal": "a normalised diagonal of scores",
    "kv_norm": "a norm of the tensor that key and value share",
    "latent": "keys and values that are made of one latent",
}


class StockExport(NamedTuple):
    """A network expressed as a stock architecture."""

    config: PreTrainedConfig
    """The configuration of GPT-2 or Llama."""
    weights: Weights
    """The weights by the architecture's names, including a tied head."""
    notes: tuple[str, ...]
    """Losses, one sentence each."""

    def build(self) -> Any:
        """Build the model of transformers."""
        # Imported here: the decode benchmark also runs without transformers.
        from transformers import AutoModelForCausalLM  # noqa: PLC0415

        dtype = next(iter(self.weights.values())).dtype
        model = AutoModelForCausalLM.from_config(self.config, dtype=dtype)
        model.load_state_dict(self.weights)
        return model.eval()


class _Linear(NamedTuple):
    """``x W^T + b`` in float64."""

    weight: Tensor
    bias: Tensor


def export_stock(network: LanguageModel, to: StockArchitecture | None = None) -> StockExport:
    """Express a network as GPT-2, or as Llama if it has rotary positions.

    Args:
        network: A language model.
        to: The architecture; by default the one that fits.

    Raises:
        ValueError: if the architecture cannot express it, with the first reason.
    """
    config = network.config
    rotary = _rotates(config)
    chosen: StockArchitecture = to or ("llama" if rotary else "gpt2")
    obstacle = find_obstacle(config, chosen)
    if obstacle is not None:
        raise ValueError(f"expected a network that {_TITLES[chosen]} can express, got {obstacle}")
    kv_heads = _count_kv_heads(config) if rotary else config.layers[0].num_heads
    make = _make_llama if rotary else _make_gpt2
    stock, weights = make(network, kv_heads)
    dtype = network.embedding.dtype
    return StockExport(
        config=stock,
        weights={name: _put(value, dtype) for name, value in weights.items()},
        notes=tuple(_find_losses(config, kv_heads, weights)),
    )


def _put(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.detach().to("cpu", dtype).contiguous()


def find_obstacle(config: LanguageModelConfig, to: StockArchitecture) -> str | None:
    """Return the first reason why an architecture cannot express a network, or ``None``."""
    own = _obstacles_to_llama if to == "llama" else _obstacles_to_gpt2
    return next(chain(_obstacles(config), own(config)), None)


def _rotates(config: LanguageModelConfig) -> bool:
    """Return whether any layer has rotary positions."""
    return any(layer.variant.positions == "rotary" for layer in config.layers)


def _obstacles(config: LanguageModelConfig) -> Iterator[str]:
    """Yield the features that no stock architecture supports."""
    for layer in config.layers:
        variant = layer.variant
        for term in variant.terms:
            if term.name not in _KNOWN_TERMS:
                yield _TERMS.get(term.name, f"{term.name} positions; choices: none, rotary")
        if variant.query_form == "residual-gelu":
            yield "a nonlinear query; choices: plain, residual, map"
        if variant.window is not None and variant.window < config.max_tokens:
            yield f"a window of {variant.window} tokens"
        if variant.stride is not None:
            yield f"a stride of {variant.stride} tokens"
        if variant.core != "softmax":
            yield f"the core {variant.core}; choices: softmax"
    if len({(layer.num_heads, layer.size_per_head) for layer in config.layers}) > 1:
        yield "layers with heads of different number or width"
    yield from _outside_obstacles(config)


def _outside_obstacles(config: LanguageModelConfig) -> Iterator[str]:
    """Yield the features outside attention that no stock architecture supports."""
    if config.block.norm_placement != "pre":
        yield f"the norm placement {config.block.norm_placement}; choices: pre"
    if config.block.skips != "both":
        yield f"skips around {config.block.skips}; choices: both"
    if config.shared_blocks:
        yield "blocks that share their weights"
    if config.scale_embedding:
        yield "scaled embeddings"
    if config.head_bias:
        yield "a bias on the logits"


def _obstacles_to_gpt2(config: LanguageModelConfig) -> Iterator[str]:
    layer, block = config.layers[0], config.block
    if _rotates(config):
        yield "rotary positions; choices: learned, sinusoidal, none"
    if block.norm != "layernorm":
        yield f"{block.norm}; choices: layernorm"
    if block.activation == "swiglu":
        yield "swiglu; choices: gelu, gelu-tanh, relu"
    if layer.num_heads * layer.size_per_head != layer.d_model:
        yield (
            f"{layer.num_heads} heads of {layer.size_per_head} channels, which are not the "
            f"{layer.d_model} of the network"
        )


def _obstacles_to_llama(config: LanguageModelConfig) -> Iterator[str]:
    block = config.block
    if not _rotates(config):
        yield "positions without rotation; choices: rotary"
    for layer in config.layers:
        position, width = layer.position, layer.size_per_head
        if layer.variant.positions != "rotary":
            yield "layers with and without rotation"
        if position.rotary_dim(width) != width:
            yield (
                f"keys with {position.rotary_dim(width)} of {width} channels rotated; choices: "
                "rotary_fraction 1"
            )
        if layer.value_rope != "none":
            yield f"values that are rotated keys ({position.value_rope}); choices: value_rope none"
    if config.d_model % config.layers[0].num_heads:
        yield f"a width of {config.d_model}, which {config.layers[0].num_heads} heads do not divide"
    if len({layer.position.rotary_base for layer in config.layers}) > 1:
        yield "layers with different rotary bases"
    if config.positions != "none":
        yield f"{config.positions} positions besides rotary ones; choices: none"
    if block.norm != "rmsnorm":
        yield f"{block.norm}; choices: rmsnorm"
    if block.activation != "swiglu":
        yield f"{block.activation}; choices: swiglu"


def _count_kv_heads(config: LanguageModelConfig) -> int:
    """Return the smallest number to which the KV heads of every layer can be copied."""
    return math.lcm(
        *(
            layer.heads(layer.variant.sharing.roles[role])
            for layer in config.layers
            for role in ("key", "value")
        )
    )


def _make_gpt2(network: LanguageModel, kv_heads: int) -> tuple[PreTrainedConfig, Weights]:
    config, block, layer = network.config, network.config.block, network.config.layers[0]
    from transformers import GPT2Config  # noqa: PLC0415

    stock = GPT2Config(
        vocab_size=config.vocabulary,
        n_positions=config.max_tokens,
        n_embd=config.d_model,
        n_layer=config.num_layers,
        n_head=layer.num_heads,
        n_inner=block.d_ff,
        activation_function=_ACTIVATIONS.get(block.activation, block.activation),
        layer_norm_epsilon=block.norm_eps,
        resid_pdrop=block.dropout,
        embd_pdrop=config.embedding_dropout,
        attn_pdrop=layer.dropout,
        tie_word_embeddings=config.tied_head,
        bos_token_id=None,
        eos_token_id=None,
    )
    weights = {
        "transformer.wte.weight": network.embedding,
        "transformer.wpe.weight": _tabulate_positions(network),
        "lm_head.weight": _head(network),
        **_norm(network.stack.final_norm, "transformer.ln_f"),
    }
    for index, part in enumerate(network.stack.blocks):
        at = f"transformer.h.{index}"
        roles = [_join(one) for one in _make_roles(part.attention, kv_heads)]
        feed = part.feed_forward
        # GPT-2 multiplies from the right: its matrices are transposed, and all have a bias.
        weights |= {
            **_norm(part.attention_norm, f"{at}.ln_1"),
            **_norm(part.feed_forward_norm, f"{at}.ln_2"),
            f"{at}.attn.c_attn.weight": torch.cat([role.weight for role in roles]).T,
            f"{at}.attn.c_attn.bias": torch.cat([role.bias for role in roles]),
            **_transposed(part.attention.o_proj, f"{at}.attn.c_proj"),
            **_transposed(feed.up, f"{at}.mlp.c_fc"),
            **_transposed(feed.down, f"{at}.mlp.c_proj"),
        }
    return stock, weights


def _make_llama(network: LanguageModel, kv_heads: int) -> tuple[PreTrainedConfig, Weights]:
    config, block, layer = network.config, network.config.block, network.config.layers[0]
    biased = any(one.bias or one.out_bias for one in config.layers)
    from transformers import LlamaConfig  # noqa: PLC0415

    stock = LlamaConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.d_model,
        intermediate_size=block.d_ff,
        num_hidden_layers=config.num_layers,
        num_attention_heads=layer.num_heads,
        num_key_value_heads=kv_heads,
        head_dim=layer.size_per_head,
        max_position_embeddings=config.max_tokens,
        rms_norm_eps=block.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": layer.position.rotary_base},
        attention_bias=biased,
        attention_dropout=layer.dropout,
        tie_word_embeddings=config.tied_head,
        bos_token_id=None,
        eos_token_id=None,
    )
    weights = {
        "model.embed_tokens.weight": network.embedding,
        "lm_head.weight": _head(network),
        **_norm(network.stack.final_norm, "model.norm"),
    }
    for index, part in enumerate(network.stack.blocks):
        at, feed = f"model.layers.{index}", part.feed_forward
        roles = _make_roles(part.attention, kv_heads)
        out = part.attention.o_proj
        joined = [_join(role) for role in roles] + [_Linear(out.weight, _bias_of(out))]
        for name, one in zip("qkvo", joined, strict=True):
            weights[f"{at}.self_attn.{name}_proj.weight"] = one.weight
            if biased:
                weights[f"{at}.self_attn.{name}_proj.bias"] = one.bias
        weights |= {
            **_norm(part.attention_norm, f"{at}.input_layernorm"),
            **_norm(part.feed_forward_norm, f"{at}.post_attention_layernorm"),
            f"{at}.mlp.gate_proj.weight": cast("nn.Linear", feed.gate).weight,
            f"{at}.mlp.up_proj.weight": feed.up.weight,
            f"{at}.mlp.down_proj.weight": feed.down.weight,
        }
    return stock, weights


def _make_roles(attention: Attention, kv_heads: int) -> list[LinearMap]:
    """Return query, key and value as linear maps of the layer input, with separate weights.

    The stock architecture scales scores by 1/sqrt(head_dim); the rest of the layer's scale is
    folded into the query.
    """
    config = attention.config
    query, key, value = make_role_maps(attention)
    rest = config.content_scale * math.sqrt(config.size_per_head)
    query = LinearMap(query.weight * rest, query.bias * rest)
    return [query, *(one.copy_heads(kv_heads) for one in (key, value))]


def _join(one: LinearMap) -> _Linear:
    return _Linear(one.weight.flatten(0, 1), one.bias.flatten())


def _tabulate_positions(network: LanguageModel) -> Tensor:
    """Return the position embedding by position."""
    config = network.config
    if network.position_embedding is not None:
        return network.position_embedding
    if config.positions == "none":
        return torch.zeros(config.max_tokens, config.d_model)
    index = torch.arange(config.max_tokens)[None]
    return sinusoid(index, config.d_model, torch.float64, config.positions)[0]


def _head(network: LanguageModel) -> Tensor:
    return network.embedding if network.head_weight is None else network.head_weight


def _bias_of(layer: nn.Linear | nn.LayerNorm) -> Tensor:
    """Return the bias, or zeros if there is none."""
    bias = cast("Tensor | None", layer.bias)
    return layer.weight.new_zeros(layer.weight.shape[0]) if bias is None else bias


def _transposed(layer: nn.Linear, name: str) -> Weights:
    return {f"{name}.weight": layer.weight.T, f"{name}.bias": _bias_of(layer)}


def _norm(norm: nn.Module | None, name: str) -> Weights:
    """Return the gain, and the bias of a LayerNorm."""
    if isinstance(norm, nn.LayerNorm):
        return {f"{name}.weight": norm.weight, f"{name}.bias": _bias_of(norm)}
    return {f"{name}.weight": cast("nn.RMSNorm", norm).weight}


def _find_losses(config: LanguageModelConfig, kv_heads: int, weights: Weights) -> Iterator[str]:
    """Yield the additional costs and missing features of the stock architecture."""
    layer = config.layers[0]
    stock = 2 * kv_heads * layer.size_per_head * config.num_layers
    own = (cache_bytes_per_token(config, "float32") or 0) // 4
    if stock > own:
        yield (
            f"its cache holds {stock:,} numbers per token, keys and values of {kv_heads} heads per "
            f"layer, where {own:,} are needed"
        )
    tied = weights["lm_head.weight"].numel() if config.tied_head else 0
    stored = sum(value.numel() for value in weights.values()) - tied
    needed = network_parameters(config).total
    if stored > needed:
        yield f"it has {stored:,} parameters where {needed:,} are needed, because it copies weights"
    block, is_llama = config.block, "model.norm.weight" in weights
    unknown = block.inner_dropout or (is_llama and (block.dropout or config.embedding_dropout))
    if unknown or len({one.dropout for one in config.layers}) > 1:
        yield "in training its dropout is weaker or applied elsewhere"
