"""Decides which layers can be converted, and makes the new configurations. Torch-free."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.canonical import own_parts
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.sharing import share
from qkvary.storage.errors import UsageError
from qkvary.text.names import listed

KEPT_TERMS = ("rotary", "soft_cap", "plus", "key_bias", "relative", "alibi", "temperature")
"""Score terms that a converted layer can keep; others are refused."""
BY_FREQUENCY = ("linear", "llama3")
"""Rotary scalings that divide each frequency by a function of that frequency alone."""


def check_layers(config: LanguageModelConfig) -> None:
    """Refuse a network that cannot be converted, such as one whose blocks share their weights."""
    if config.shared_blocks:
        raise UsageError(
            "expected separate weights for each block, got one block that all layers share; a "
            "conversion fits the weights of each layer to the inputs of this layer"
        )
    for index, layer in enumerate(config.layers, start=1):
        reason = _find_reason(layer)
        if reason is not None:
            raise UsageError(f"layer {index} cannot be converted: {reason}")


def _find_reason(layer: AttentionConfig) -> str | None:
    variant = layer.variant
    if variant.own is not None:
        return f"it has {listed(own_parts([variant]))}, a part of your own"
    if variant.core != "softmax":
        return f"it has the core {variant.core}, expected the softmax"
    for term in variant.terms:
        if term.name not in KEPT_TERMS:
            words = term.write(term.words, variant)
            return f"{words} ({term.field}), which a conversion cannot keep"
    scaling = layer.position.scaling
    if layer.rotated_channels and scaling is not None and scaling.attention_factor != 1:
        return "its rotary scaling multiplies rotated keys by a factor that other keys would lack"
    if variant.query_form == "residual-gelu":
        return "its query is not linear in the layer input"
    if layer.value_rope != "none":
        return f"its values are rotated keys (value_rope {layer.value_rope})"
    return None


def count_numbers(layer: AttentionConfig) -> int:
    """Return how many numbers a layer caches per token."""
    return sum(layer.width(source) for source in layer.variant.cached)


def reshape(layer: AttentionConfig, head_dim: int, **variant: Any) -> AttentionConfig:
    """Return a layer with some fields of its variant replaced, a plain query and no low ranks."""
    plain: dict[str, Any] = {"query_form": "plain", "k_rank": None, "v_rank": None}
    return dataclasses.replace(
        layer,
        variant=dataclasses.replace(layer.variant, **plain, **variant),
        head_dim=None if head_dim * layer.num_heads == layer.d_model else head_dim,
        scale=dataclasses.replace(layer.scale, identity="none"),
    )


def share_tensor(
    layer: AttentionConfig, head_dim: int, *, rotary: int, **variant: Any
) -> AttentionConfig:
    """Return a layer with one tensor for keys and values, and ``rotary`` extra rotated channels."""
    if rotary:
        variant |= {"positions": "none", "decoupled": rotary}
    return reshape(layer, head_dim, sharing=share("q", "k", "k"), **variant)


def choose_rotary(layer: AttentionConfig, numbers: int) -> int:
    """Return the number of rotated channels in a key, if a layer caches ``numbers`` per token.

    It is the largest even divisor of the layer's number of rotated channels that is at most three
    quarters of ``numbers``, or 2 if there is none; it is 0 for a layer without rotated channels. If
    the rotary scaling needs all rotated channels, all are kept.
    """
    rotated, scaling = layer.rotated_channels, layer.position.scaling
    if scaling is not None and scaling.form not in BY_FREQUENCY:
        return rotated
    return next(
        (
            size
            for size in range(rotated, 1, -1)
            if rotated % size == size % 2 == 0 and 4 * size <= 3 * numbers
        ),
        2 if rotated else 0,
    )


def refuse_budget(
    method: str, numbers: int, choices: Sequence[int], layer: AttentionConfig
) -> UsageError:
    """Return the error for a cache size that a method cannot produce for a layer.

    ``choices`` holds the sizes that the method can produce, as a list or a range.
    """
    kept = count_numbers(layer)
    is_range = isinstance(choices, range) and len(choices) > 1
    ends = (choices[0], choices[-1]) if is_range else choices
    some = (" to " if is_range else ", ").join(f"{one} ({one / kept:.0%})" for one in ends)
    return UsageError(
        f"expected a cache size that {method} can produce, got {numbers} of {kept} values per "
        f"token and layer; choices: {some}"
    )
