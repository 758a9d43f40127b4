"""The networks of the decode benchmark and their cost-model figures. Never imports torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from itertools import product

from decoding.records import DecodeCase, DecodeQuestion
from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.blocks import ProjectedAttention, Storage
from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.models import Model, as_model, map_layers
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.decoding import decode_step
from qkvary.costs.formats import Dtype, cache_format, parse_format
from qkvary.costs.memory import forward_bytes
from qkvary.costs.parameters import network_parameters
from qkvary.storage.environment import require_memory

STORED: dict[CacheLayout, Storage] = {
    "sources": "needed",
    "rotated": "needed",
    "split": "both",
    "input": "input",
    "latent": "latent",
}
"""The storage of a layout in the cost model, except for rotated K=V layers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a network with random weights."""

    d_model: int = 256
    """The width of the residual stream."""
    num_layers: int = 4
    """Layers."""
    num_heads: int = 4
    """Query heads."""
    vocabulary: int = 512
    """Distinct tokens."""


def make_network(label: str, sizes: Sizes) -> LanguageModelConfig:
    """Return a network that GPT-2 or, if it is rotary, Llama can express where possible.

    Args:
        label: The variant, in any spelling.
        sizes: The sizes of the network.

    Raises:
        ValueError: for an unknown label, or sizes that do not fit it.
    """
    variant = parse_variant(label)
    modern = variant.positions == "rotary" or variant.decoupled is not None
    attention = AttentionConfig(
        d_model=sizes.d_model,
        num_heads=sizes.num_heads,
        variant=variant,
        causal=True,
        # Llama rotates whole heads, and its values are never rotated.
        position=PositionConfig(rotary_fraction=1.0, value_rope="none"),
    )
    llama = BlockConfig(d_ff=4 * sizes.d_model, norm="rmsnorm", activation="swiglu", bias=False)
    return LanguageModelConfig(
        attention=attention,
        block=llama if modern else BlockConfig(d_ff=4 * sizes.d_model),
        num_layers=sizes.num_layers,
        vocabulary=sizes.vocabulary,
        max_tokens=1,
        positions="none" if variant.has_positions else "learned",
    )


def check_memory(question: DecodeQuestion, *, num_layers: int | None = None) -> None:
    """Check that the CPU has the memory for weights, cache and a pass over the prompt of each case.

    Args:
        question: The cases; those on a device are not checked.
        num_layers: Layers of every network, whose own are then one. A network lists its layers, so
            one with too many must not be made.

    Raises:
        ResourceError: if it has less.
    """
    if question.settings.device != "cpu":
        return
    for network, context, batch, dtype, choice in product(
        question.networks, question.contexts, question.batches, question.dtypes, question.caches
    ):
        variant, options = name_variant(network), choice.resolve(CacheOptions())
        case = DecodeCase(variant=variant, context=context, batch=batch, dtype=dtype)
        longest = network.max_tokens if question.checkpoint else context
        needed = _answer_bytes(replace(network, max_tokens=longest), options, case)
        if num_layers is not None:
            two = replace(network, max_tokens=longest, num_layers=2)
            needed += (num_layers - 1) * (_answer_bytes(two, options, case) - needed)
        require_memory(
            needed,
            f"decoding {variant} with {context:,} tokens in batches of {batch:,} takes",
            "use a smaller network, --context or --batch",
        )


def _answer_bytes(network: LanguageModelConfig, options: CacheOptions, case: DecodeCase) -> int:
    tokens, number_bytes = case.context, parse_format(case.dtype).bits // 8
    return (
        number_bytes * network_parameters(network).total
        + cache_formula_bytes(network, options, tokens=tokens, batch=case.batch, dtype=case.dtype)
        + forward_bytes(network, tokens=case.batch * tokens, number_bytes=number_bytes)
    )


def name_variant(network: LanguageModelConfig) -> str:
    """Return the canonical label of a network's layers; for mixed layers, each label once."""
    labels = (format_label(layer.variant) for layer in network.layers)
    return ", ".join(dict.fromkeys(labels))


def shares_key_and_value(network: LanguageModelConfig) -> bool:
    """Return whether a layer's value reads the key's source."""
    sharings = (layer.variant.sharing for layer in network.layers)
    return any(sharing.key == sharing.value for sharing in sharings)


def stored_model(network: LanguageModelConfig, layout: CacheLayout) -> Model:
    """Return the costed network with its cache in a layout."""
    model = as_model(network)

    def store(attention: ProjectedAttention) -> ProjectedAttention:
        config, storage = attention.config, STORED[layout]
        shared = config.variant.sharing.key == config.variant.sharing.value
        turned = config.variant.positions == "rotary" and config.position.value_rope == "none"
        if layout == "rotated" and shared and turned:
            storage = "value and slice"
        return dataclasses.replace(attention, storage=storage)

    layers = map_layers(
        model.layers,
        lambda layer: (
            dataclasses.replace(layer, attention=store(layer.attention))
            if isinstance(layer.attention, ProjectedAttention)
            else layer
        ),
    )
    return dataclasses.replace(model, layers=tuple(layers))


def cache_formula_bytes(
    network: LanguageModelConfig, options: CacheOptions, *, tokens: int, batch: int, dtype: Dtype
) -> int:
    """Return the bytes of a cache by the cost model.

    Args:
        network: The network.
        options: The options of the cache.
        tokens: Stored tokens per sequence.
        batch: The number of sequences.
        dtype: The dtype of the network.
    """
    model = stored_model(network, options.layout)
    return batch * model_cache_bytes(model, context=tokens, stored_as=cache_format(options, dtype))


def mean_step_bytes(
    network: LanguageModelConfig,
    options: CacheOptions,
    *,
    prompt: int,
    tokens: int,
    batch: int,
    dtype: Dtype,
) -> float:
    """Return the minimum bytes of weights and cache that a step reads, averaged over an answer.

    Args:
        network: The network.
        options: The options of the cache.
        prompt: Tokens of the prompt.
        tokens: Tokens of the answer; the first comes from the prompt, every other takes a step.
        batch: The batch size.
        dtype: The dtype of the network.
    """
    model, form = stored_model(network, options.layout), cache_format(options, dtype)
    weights = parse_format(dtype)
    steps = [
        decode_step(model, batch=batch, context=prompt + done, weights=weights, cache=form)
        for done in range(1, tokens)
    ]
    return math.fsum(step.weight_bytes + step.cache_bytes for step in steps) / len(steps)
