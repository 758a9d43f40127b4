"""Converts our language models to Hugging Face GPT-2, Llama or DeepSeek V3, for any engine.

Shared weights are copied, because a stock architecture has separate projections. The network
computes the same function up to rounding, but sharing no longer saves memory. ``StockExport.notes``
lists the additional parameters and cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from qkvary.arch.attention import KV_NORM_EPS
from qkvary.arch.families.language_models import BLOCKS
from qkvary.arch.families.rotary_fields import write_rotation
from qkvary.arch.families.written import write_language_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints import stock_networks
from qkvary.checkpoints.latent_networks import LATENT, latent_width
from qkvary.checkpoints.stock_names import TITLES, StockArchitecture
from qkvary.checkpoints.stock_networks import (
    choose_architecture,
    count_kv_heads,
    find_losses,
    find_parameter,
    has_bias,
    plain_weights,
    rotates,
)
from qkvary.checkpoints.stock_parts import PLUS_ONE, Weights, name_weights, rotated_first
from qkvary.costs.engines import VLLM_LATENT, VLLM_LATENT_SIZES
from qkvary.nn.language_model import LanguageModel
from qkvary.text.names import listed

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_ACTIVATIONS = {"gelu-tanh": "gelu_new"}


class StockExport(NamedTuple):
    """A network expressed as a stock architecture."""

    config: PreTrainedConfig
    weights: Weights
    """The weights by their names in the architecture, including a tied head."""
    notes: tuple[str, ...]

    def build(self) -> Any:
        """Build the ``transformers`` model."""
        dtype = next(iter(self.weights.values())).dtype
        model = _import_transformers().AutoModelForCausalLM.from_config(self.config, dtype=dtype)
        # GPT-NeoX has another name for the head in files.
        names = {name: name.replace("embed_out", "lm_head") for name in self.weights}
        model.load_state_dict({names[name]: one for name, one in self.weights.items()})
        return model.eval()


def export_stock(network: LanguageModel, to: StockArchitecture | None = None) -> StockExport:
    """Express a network as GPT-2, Llama (rotary), DeepSeek V3 (decoupled) or another family.

    Raises:
        ValueError: if the architecture cannot express the network; the message gives a reason.
    """
    config = network.config
    chosen = to or choose_architecture(config)
    obstacle = find_obstacle(config, chosen)
    written = write_language_model(config) if obstacle is not None and to is None else None
    if obstacle is not None and written is None:
        raise ValueError(
            f"expected a network that {TITLES[chosen]} can express, got one with {obstacle}"
        )
    if written is not None:
        family, fields = written.family, {**written.fields, "pad_token_id": None}
        weights = _name(partial(find_parameter, network), family, config)
        if BLOCKS[family].norm == PLUS_ONE != config.block.norm:
            weights |= {name: weights[name] - 1 for name in weights if "norm" in name}
    else:
        family = LATENT if chosen == "deepseek" else chosen
        fields, bias = _describe(config, chosen), has_bias(config)
        plain = plain_weights(network, chosen, bias=bias, out_bias=bias)
        if chosen == "deepseek":
            _change_epsilon(plain, config)
        weights = _name(plain.get, family, config)
    ends = {"tie_word_embeddings": config.tied_head, "bos_token_id": None, "eos_token_id": None}
    made = _import_transformers().AutoConfig.for_model(family, **{**fields, **ends})
    notes = () if written is not None else tuple(_find_notes(config, chosen, weights))
    return StockExport(made, weights, notes)


def _name(
    find: Callable[[str], Tensor | None], family: str, config: LanguageModelConfig
) -> Weights:
    named = name_weights(find, family, config, "theirs", rotated_first)
    return {row.theirs: weight.detach().cpu().contiguous() for row, weight in named}


def _change_epsilon(weights: Weights, config: LanguageModelConfig) -> None:
    """Give all norms the epsilon of the latent's norm, because vLLM has one epsilon for all norms.

    A norm of ``f x`` with the epsilon ``f^2 eps`` equals the norm of x with the epsilon ``eps``, so
    everything that is added to the residual stream is multiplied by f.
    """
    factor = (KV_NORM_EPS / config.block.norm_eps) ** 0.5
    if factor == 1:
        return
    for name in weights:
        if name.endswith(("embedding", "o_proj.weight", "feed_forward.down.weight")):
            weights[name] = weights[name] * factor
    if config.tied_head:
        weights["head_weight"] = weights["embedding"].clone()
        weights["stack.final_norm.weight"] = weights["stack.final_norm.weight"] / factor


def find_obstacle(config: LanguageModelConfig, to: StockArchitecture) -> str | None:
    """Return the first reason why transformers cannot express a network, or ``None``."""
    more = _obstacles_to_llama(config) if to == "llama" else ()
    return stock_networks.find_obstacle(config, to, more)


def list_targets(config: LanguageModelConfig) -> list[str]:
    """Return the values of ``--to`` for transformers that can express a network."""
    found = [to for to in TITLES if find_obstacle(config, to) is None]
    has_class = choose_architecture(config) in found or write_language_model(config) is not None
    return [*found, *(["hf"] if has_class else []), "transformers"]


def _obstacles_to_llama(config: LanguageModelConfig) -> Iterator[str]:
    for layer in config.layers:
        width = layer.size_per_head
        rotated = layer.position.rotary_dim(width)
        if layer.variant.positions == "rotary" and rotated != width:
            yield f"keys with {rotated} of {width} channels rotated; set rotary_fraction to 1"
    heads = config.layers[0].num_heads
    if rotates(config) and config.d_model % heads:
        yield f"a width of {config.d_model}, which is not divisible by its {heads} heads"


def _describe(config: LanguageModelConfig, to: StockArchitecture) -> dict[str, Any]:
    block, layer = config.block, config.layers[0]
    if to == "gpt2":
        return {
            "vocab_size": config.vocabulary,
            "n_positions": config.max_tokens,
            "n_embd": config.d_model,
            "n_layer": config.num_layers,
            "n_head": layer.num_heads,
            "n_inner": block.d_ff,
            "activation_function": _ACTIVATIONS.get(block.activation, block.activation),
            "layer_norm_epsilon": block.norm_eps,
            "resid_pdrop": block.dropout,
            "embd_pdrop": config.embedding_dropout,
            "attn_pdrop": layer.dropout,
        }
    scaling = layer.position.scaling
    grows = scaling is not None and scaling.form == "dynamic"
    common = {
        "vocab_size": config.vocabulary,
        "hidden_size": config.d_model,
        "intermediate_size": block.d_ff,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": layer.num_heads,
        # For this scaling, transformers states the maximum length before the extension.
        "max_position_embeddings": scaling.original_tokens
        if scaling is not None and grows
        else config.max_tokens,
        "rms_norm_eps": block.norm_eps,
        "rope_parameters": write_rotation(layer.position),
        "attention_dropout": layer.dropout,
    }
    if to == "llama":
        return {
            **common,
            "num_key_value_heads": count_kv_heads(config),
            "head_dim": layer.size_per_head,
            "attention_bias": has_bias(config),
        }
    return {
        **common,
        "rms_norm_eps": KV_NORM_EPS,
        "moe_intermediate_size": block.d_ff,
        # All layers are dense, and there is no layer that predicts further tokens.
        "first_k_dense_replace": config.num_layers,
        "num_mtp_layers": 0,
        "num_key_value_heads": layer.num_heads,
        "kv_lora_rank": latent_width(layer),
        "q_lora_rank": None,
        "qk_rope_head_dim": layer.variant.decoupled or 0,
        "qk_nope_head_dim": layer.size_per_head,
        "v_head_dim": layer.size_per_head,
    }


def _import_transformers() -> Any:
    return import_module("transformers")


def _find_notes(
    config: LanguageModelConfig, to: StockArchitecture, weights: Weights
) -> Iterator[str]:
    tied = weights["lm_head.weight"].numel() if config.tied_head else 0
    yield from find_losses(config, to, sum(one.numel() for one in weights.values()) - tied)
    layer = config.layers[0]
    size = (latent_width(layer), layer.variant.decoupled)
    if to == "deepseek" and size != VLLM_LATENT:
        yield (
            f"this network has {size[0]} latent and {size[1]} rotary values; vLLM 0.32 supports "
            f"sums of {listed(list(map(str, VLLM_LATENT_SIZES)), 'or')}, and on CPUs only "
            f"{VLLM_LATENT[0]} latent and {VLLM_LATENT[1]} rotary values, as in lm-60m-mla "
            "(8 KV heads of 64 with @decoupled-64)"
        )
