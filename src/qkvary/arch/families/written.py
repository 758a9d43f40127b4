"""Functions that write language models as Hugging Face configurations.

They are the inverse of ``language_models``.

A family can express a network if the written configuration reads back as the same network.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.families.attention_fields import LAYER_TYPES
from qkvary.arch.families.decoders import RECIPES
from qkvary.arch.families.fields import Fields
from qkvary.arch.families.language_models import BLOCKS, GATED, PLAIN, Block, read_language_model
from qkvary.arch.families.recipes import Flag, Recipe
from qkvary.arch.families.rotary_fields import LONGEST, ORIGINAL, write_rotation
from qkvary.arch.networks import LanguageModelConfig

GLOBAL, LOCAL = LAYER_TYPES
_WHOLES = ("gemma3",)
"""Multimodal families, whose language model has its own ``model_type``."""


_PARTIAL = ("phi3", "stablelm", "gpt_neox")
"""Families that can rotate a part of a head's channels."""


class Written(NamedTuple):
    """The Hugging Face configuration of a network."""

    family: str
    """The ``model_type``."""
    fields: Mapping[str, object]


def write_language_model(config: LanguageModelConfig) -> Written | None:
    """Return the configuration of the first family that can express a network, or ``None``."""
    found = (write_as(config, family) for family in BLOCKS if family not in _WHOLES)
    return next((one for one in found if one is not None), None)


def write_as(config: LanguageModelConfig, family: str) -> Written | None:
    """Return the configuration in a family's format, or ``None`` if the family cannot express it.

    Norms that multiply by 1 plus their gain count as equal to norms that multiply by their gain,
    because the gains can be changed to match.
    """
    whole = all(one.rotated_channels in (0, one.size_per_head) for one in config.layers)
    if not whole and family not in _PARTIAL:
        return None
    fields = dict(_write(config, RECIPES[family], BLOCKS[family]))
    ignored = RECIPES[family].ignored
    fields = {name: one for name, one in fields.items() if name not in ignored}
    try:
        found = read_language_model(family, Fields(fields, family))
    except ValueError:
        return None
    return Written(family, fields) if comparable(found) == comparable(config) else None


def comparable(config: LanguageModelConfig) -> LanguageModelConfig:
    """Return a normal form. Networks that compute the same function have equal normal forms."""
    layers = tuple(map(_comparable_layer, config.layers))
    plain = config.block.norm == "rmsnorm-plus-one"
    block = replace(
        config.block, norm="rmsnorm" if plain else config.block.norm, dropout=0.0, inner_dropout=0.0
    )
    same = len(set(layers)) == 1
    return replace(
        config, attention=layers[0] if same else layers, block=block, embedding_dropout=0.0
    )


def _comparable_layer(layer: AttentionConfig) -> AttentionConfig:
    size, position = layer.size_per_head, layer.position
    turned = layer.rotated_channels
    position = replace(
        position,
        rotary_fraction=turned / size if turned else PositionConfig().rotary_fraction,
        rotary_base=position.rotary_base if turned else PositionConfig().rotary_base,
        scaling=position.scaling if turned else None,
    )
    scale = replace(layer.scale, norm_adds_one=False)
    if scale.channels == size:
        scale = replace(scale, channels=None)
    return replace(
        layer,
        position=position,
        scale=scale,
        head_dim=size,
        dropout=0.0,
        init=AttentionConfig(d_model=1, num_heads=1).init,
    )


def _write(
    config: LanguageModelConfig, recipe: Recipe, block: Block
) -> Iterator[tuple[str, object]]:
    """Yield the configuration fields of the family that describe the network."""
    layer, own = config.layers[0], config.block
    yield "vocab_size", config.vocabulary
    yield "hidden_size", config.d_model
    yield "num_hidden_layers", config.num_layers
    yield "num_attention_heads", layer.num_heads
    yield "num_key_value_heads", layer.num_kv_heads
    yield "head_dim", layer.size_per_head
    yield "intermediate_size", own.d_ff
    yield "tie_word_embeddings", config.tied_head
    yield block.eps, own.norm_eps
    names = (GATED if recipe.gated else PLAIN).items()
    found = next((name for name, one in names if one == own.activation), None)
    if found is not None:
        yield block.activation, found
    yield from _write_flag(recipe.bias, value=layer.bias)
    yield from _write_flag(recipe.out_bias or False, value=layer.out_bias)
    yield from _write_flag(recipe.is_normed, value=layer.variant.head_norm != "none")
    yield from _write_flag(recipe.mlp_bias, value=own.has_feed_forward_bias)
    yield from _write_flag(block.parallel, value=own.parallel)
    yield from _write_flag(recipe.head_bias, value=config.head_bias)
    if recipe.score_cap is not None:
        yield recipe.score_cap, layer.variant.soft_cap
    if block.logit_cap is not None:
        yield block.logit_cap, config.logit_cap
    if block.scale is not None:
        channels = layer.scale.channels or layer.size_per_head
        yield block.scale, int(channels) if float(channels).is_integer() else channels
    if recipe.skips_rotation:
        yield "no_rope_layers", [int(one.rotated_channels > 0) for one in config.layers]
    yield from _write_windows(config, recipe, block)
    yield from _write_rotations(config, recipe)


def _write_flag(flag: Flag, *, value: bool) -> Iterator[tuple[str, object]]:
    if not isinstance(flag, bool):
        yield flag[0], value


def _write_windows(
    config: LanguageModelConfig, recipe: Recipe, block: Block
) -> Iterator[tuple[str, object]]:
    windows = [layer.variant.window for layer in config.layers]
    if recipe.windows == "none" or "use_sliding_window" in block.fixed:
        return
    yield "sliding_window", next((one for one in windows if one is not None), None)
    if "use_sliding_window" in recipe.defaults:
        yield "use_sliding_window", any(one is not None for one in windows)
    if "layer_types" not in block.fixed:
        yield "layer_types", [GLOBAL if one is None else LOCAL for one in windows]


def _write_rotations(config: LanguageModelConfig, recipe: Recipe) -> Iterator[tuple[str, object]]:
    turning = [layer for layer in config.layers if layer.rotated_channels] or [config.layers[0]]
    rotations = {
        LOCAL if layer.variant.window is not None else GLOBAL: {
            **write_rotation(layer.position),
            "partial_rotary_factor": layer.rotated_channels / layer.size_per_head,
        }
        for layer in reversed(turning)
    }
    first = turning[0].position.scaling
    if recipe.local_base is not None and LOCAL in rotations:
        yield "rope_parameters", {GLOBAL: rotations[LOCAL], **rotations}
    else:
        yield "rope_parameters", next(iter(rotations.values()))
    grows = first is not None and first.form == "dynamic"
    yield LONGEST, first.original_tokens if first is not None and grows else config.max_tokens
    if first is not None and first.form == "longrope":
        yield ORIGINAL, first.original_tokens
