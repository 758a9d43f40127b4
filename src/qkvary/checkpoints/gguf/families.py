"""Converts a language model to llama.cpp's architecture for its family: Qwen 3, Gemma, OLMo 2, ...

A family is suitable if the written file gives the same configuration when it is read.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.families.language_models import BLOCKS
from qkvary.arch.families.written import comparable, write_as
from qkvary.arch.labels import format_label
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.gguf.configs import FAMILIES, PAIRED, make_config, read_sizes
from qkvary.checkpoints.gguf.headers import GELU, GgufFile, Stored
from qkvary.checkpoints.stock_networks import find_parameter
from qkvary.checkpoints.stock_parts import PLUS_ONE, name_weights, paired_first, rotated_first
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, UsageError

ARCHITECTURE = "general.architecture"
_WINDOWED = ("gemma2", "gemma3")
"""Architectures in which llama.cpp applies attention windows; it ignores those of Phi 3."""
_ALWAYS_BIASED = ("gptneox", "starcoder2")
"""Architectures whose attention always has biases in llama.cpp."""
_BIASED = (*_ALWAYS_BIASED, "llama", "qwen2", "stablelm")
"""Architectures whose attention may have biases in llama.cpp."""


Expressed = tuple[str, dict[str, Any], dict[str, torch.Tensor]]
"""A network for llama.cpp: its architecture, metadata values by key, and tensors in float32."""


def convert_family(network: LanguageModel, obstacle: str) -> Expressed:
    """Convert a network to the first suitable llama.cpp family.

    Raises:
        UsageError: if there is none. The message names the layer that a family of the network
            would compute differently, or states ``obstacle``.
    """
    config, reasons = network.config, list[str]()
    for name, family in FAMILIES.items():
        if write_as(config, family) is None or not _is_computed(config, name):
            continue
        tensors = dict(_list_tensors(network, name))
        metadata = describe_sizes(config, name, dict(_describe(config, name)))
        stored = {
            key: Stored(tuple(one.shape), "f32", one.numpy().data.cast("B"))
            for key, one in tensors.items()
        }
        header = {ARCHITECTURE: name, **metadata}
        try:
            found = make_config(read_sizes(GgufFile(header, stored), "the file"))
        except (UsageError, DamagedError):
            continue
        if found is None:
            continue
        if _stored(found) == _stored(config):
            return name, metadata, tensors
        differences = _find_differences(_stored(config), _stored(found), name)
        reasons += [f"{name} can express, got one with {one}" for one in differences]
    raise UsageError(f"expected a network that llama.cpp's {[*reasons, obstacle][0]}")


def _find_differences(
    config: LanguageModelConfig, found: LanguageModelConfig, name: str
) -> Iterator[str]:
    """Yield what llama.cpp would compute differently in the layers of a family."""
    for number, (ours, theirs) in enumerate(zip(config.layers, found.layers, strict=True), 1):
        if ours.variant != theirs.variant:
            yield (
                f"{format_label(ours.variant)} in layer {number}, where {name} has "
                f"{format_label(theirs.variant)}"
            )
        elif ours.scale != theirs.scale:
            yield f"scores in layer {number} whose scale is not that of {name}"


def describe_sizes(
    config: LanguageModelConfig, name: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return metadata by key: the sizes that architectures share, and the entries of ``more``."""
    usual = {
        "vocab_size": config.vocabulary,
        "context_length": config.max_tokens,
        "embedding_length": config.d_model,
        "block_count": config.num_layers,
        "feed_forward_length": config.block.d_ff,
        "attention.head_count": config.layers[0].num_heads,
    }
    found = {f"{name}.{key}": value for key, value in {**usual, **more}.items()}
    return {**({GELU: "erf"} if config.block.activation == "gelu" else {}), **found}


def _is_computed(config: LanguageModelConfig, name: str) -> bool:
    layer = config.layers[0]
    has_windows = any(one.variant.window is not None for one in config.layers)
    has_bias = layer.bias or layer.out_bias
    is_wide = layer.num_heads * layer.size_per_head != config.d_model
    return (
        (name in _WINDOWED or not has_windows)
        and (name in _BIASED or not has_bias)
        and (name not in _ALWAYS_BIASED or (layer.bias and layer.out_bias))
        and not (name == "olmo2" and is_wide)
    )


def _stored(config: LanguageModelConfig) -> LanguageModelConfig:
    """Return the configuration with frequency divisors in 32 bits, as in a file."""
    found = comparable(config)

    def fit(layer: AttentionConfig) -> AttentionConfig:
        scaling = layer.position.scaling
        if scaling is None or not scaling.long:
            return layer
        short, long = (tuple(torch.tensor(one).tolist()) for one in (scaling.short, scaling.long))
        own = dataclasses.replace(scaling, short=short, long=long)
        return dataclasses.replace(layer, position=dataclasses.replace(layer.position, scaling=own))

    layers = tuple(map(fit, found.layers))
    same = len(set(layers)) == 1
    return dataclasses.replace(found, attention=layers[0] if same else layers)


def _list_tensors(network: LanguageModel, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    config, layer = network.config, network.config.layers[0]
    scaling = layer.position.scaling
    if scaling is not None and scaling.form == "longrope":
        yield "rope_factors_long.weight", torch.tensor(scaling.long)
        yield "rope_factors_short.weight", torch.tensor(scaling.short)
    order = paired_first if name in PAIRED else rotated_first
    raised = config.block.norm == PLUS_ONE
    find = partial(find_parameter, network)
    for row, weight in name_weights(find, FAMILIES[name], config, "gguf", order):
        if not (config.tied_head and row.ours == "head_weight"):
            found = weight.detach().cpu().float()
            yield row.gguf, (found + 1 if raised and "norm" in row.ours else found).contiguous()


def _describe(config: LanguageModelConfig, name: str) -> Iterator[tuple[str, Any]]:
    layer, block = config.layers[0], BLOCKS[FAMILIES[name]]
    kind = "layer_norm" if block.norm == "layernorm" else "layer_norm_rms"
    yield "attention.head_count_kv", layer.num_kv_heads
    yield "attention.key_length", layer.size_per_head
    yield "attention.value_length", layer.size_per_head
    yield f"attention.{kind}_epsilon", config.block.norm_eps
    windows = {one.variant.window for one in config.layers} - {None}
    yield from (("attention.sliding_window", window) for window in windows)
    if block.parallel or "use_parallel_residual" in block.fixed:
        yield "use_parallel_residual", config.block.parallel
    # llama.cpp always applies both caps of Gemma 2, even if the file omits one.
    if layer.variant.soft_cap is not None:
        yield "attn_logit_softcapping", layer.variant.soft_cap
    if config.logit_cap is not None:
        yield "final_logit_softcapping", config.logit_cap
    yield from _describe_rotation(config)


def _describe_rotation(config: LanguageModelConfig) -> Iterator[tuple[str, Any]]:
    turning = [one for one in config.layers if one.rotated_channels]
    full = [one for one in turning if one.variant.window is None]
    near = [one for one in turning if one.variant.window is not None]
    main = (full or near or [config.layers[0]])[0]
    yield "rope.dimension_count", main.rotated_channels or main.size_per_head
    yield "rope.freq_base", float(main.position.rotary_base)
    for one in itertools.islice(near, int(bool(full))):
        if one.position.rotary_base not in (main.position.rotary_base, 10_000.0):
            yield "rope.freq_base_swa", float(one.position.rotary_base)
    scaling = main.position.scaling
    if scaling is None or scaling.form == "dynamic":
        return
    if scaling.form == "longrope":
        yield "rope.scaling.type", scaling.form
        yield "rope.scaling.attn_factor", scaling.attention_factor
        yield "rope.scaling.original_context_length", scaling.original_tokens
        return
    yield "rope.scaling.type", scaling.form
    yield "rope.scaling.factor", scaling.factor
    if scaling.form == "yarn":
        usual = 1.0 if scaling.factor <= 1 else 0.1 * math.log(scaling.factor) + 1.0
        yield "rope.scaling.original_context_length", scaling.original_tokens
        yield "rope.scaling.attn_factor", scaling.attention_factor / usual
