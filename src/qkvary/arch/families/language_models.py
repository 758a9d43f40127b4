"""Functions that turn Hugging Face configurations into language models of this package.

A family that can be loaded has an entry in ``BLOCKS`` in addition to the recipe that costs use.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qkvary.arch.attention import AttentionConfig, ScaleConfig
from qkvary.arch.families.attention_fields import Heads, build_each
from qkvary.arch.families.decoders import RECIPES
from qkvary.arch.families.fields import Fields
from qkvary.arch.families.recipes import (
    Flag,
    Kind,
    Recipe,
    complete,
    find_longest,
    list_kinds,
    read_dense,
    read_flag,
    read_head_config,
    rotary_fields,
)
from qkvary.arch.families.rotary_fields import LONGEST, read_scaling
from qkvary.arch.networks import Activation, BlockConfig, LanguageModelConfig, Norm, NormPlacement

GATED: Mapping[str, Activation] = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu_pytorch_tanh": "geglu-tanh",
    "gelu_new": "geglu-tanh",
}
"""Gated activations, by the name in transformers."""
PLAIN: Mapping[str, Activation] = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
}
"""Ungated activations, by the name in transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The settings of a family that do not affect costs; the defaults are Llama's."""

    activation: str = "hidden_act"
    """The configuration's field with the activation."""
    norm: Norm = "rmsnorm"
    placement: NormPlacement = "pre"
    eps: str = "rms_norm_eps"
    """The configuration's field with the epsilon of the normalisations."""
    parallel: Flag = False
    """Whether attention and feed-forward network read the same input."""
    scales_embedding: bool = False
    """Whether embedded tokens are multiplied by sqrt(d_model)."""
    logit_cap: str | None = None
    """The configuration's field with the soft cap of logits."""
    scale: str | None = None
    """The configuration's field with d in the score scale 1/sqrt(d); ``None`` for the head size."""
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """Defaults of fields that a configuration may omit. Only defaults unlike Llama's are listed."""
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])
    """The supported values of some fields; other values are refused."""


_LLAMA = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 2048}
_UNLISTED: Mapping[str, tuple[object, ...]] = {"layer_types": ()}
"""Refuses ``layer_types`` if transformers ignores this list, because other programs read it."""
_GEMMA = Block(
    activation="hidden_activation",
    norm="rmsnorm-plus-one",
    scales_embedding=True,
    defaults={"hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192},
)
_GEMMA3 = replace(
    _GEMMA,
    placement="sandwich",
    logit_cap="final_logit_softcapping",
    scale="query_pre_attn_scalar",
    defaults={
        **_GEMMA.defaults,
        "query_pre_attn_scalar": 256,
        "max_position_embeddings": 131_072,
    },
    fixed={"attn_logit_softcapping": ()},
)
BLOCKS: Mapping[str, Block] = {
    "llama": Block(),
    "mistral": Block(defaults={"max_position_embeddings": 131_072}, fixed=_UNLISTED),
    "ministral": Block(defaults={"max_position_embeddings": 131_072}),
    "ministral3": Block(
        defaults={
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 262_144,
        },
        fixed=_UNLISTED,
    ),
    "phi3": Block(
        defaults={
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
        fixed=_UNLISTED,
    ),
    "qwen2": Block(defaults={"max_position_embeddings": 32_768}),
    "qwen3": Block(defaults={"max_position_embeddings": 32_768}),
    "smollm3": Block(
        defaults={"max_position_embeddings": 32_768},
        fixed={"use_sliding_window": (False,)},
    ),
    **dict.fromkeys(("olmo2", "olmo3"), Block(placement="output", defaults={"rms_norm_eps": 1e-5})),
    "seed_oss": Block(defaults={"max_position_embeddings": 524_288}),
    "starcoder2": Block(
        norm="layernorm",
        eps="norm_epsilon",
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "norm_epsilon": 1e-5,
            "max_position_embeddings": 4096,
        },
        fixed=_UNLISTED,
    ),
    "stablelm": Block(
        norm="layernorm",
        eps="layer_norm_eps",
        defaults={"layer_norm_eps": 1e-5, "max_position_embeddings": 4096},
        fixed={"use_parallel_residual": (False,), "qk_layernorm": (False,)},
    ),
    "gpt_neox": Block(
        norm="layernorm",
        eps="layer_norm_eps",
        parallel=("use_parallel_residual", True),
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-5},
    ),
    "gemma": replace(
        _GEMMA,
        activation="hidden_act",
        defaults={**_GEMMA.defaults, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "gemma2": replace(
        _GEMMA,
        placement="sandwich",
        logit_cap="final_logit_softcapping",
        scale="query_pre_attn_scalar",
        defaults={
            **_GEMMA.defaults,
            "query_pre_attn_scalar": 256,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
}
"""The block settings of each family that this package can build, by ``model_type``."""


def read_language_model(family: str, fields: Fields) -> LanguageModelConfig:
    """Return the network that a configuration describes; ``family`` must be in ``BLOCKS``."""
    recipe, block = RECIPES[family], BLOCKS[family]
    own = {**_LLAMA, **block.defaults}
    fields = complete(recipe, Fields({**own, **fields.content}, fields.family))
    fields.allow({**recipe.required, **block.fixed})
    kinds = list_kinds(recipe, fields)
    layers = build_each(kinds, lambda kind: _attend(recipe, block, fields, kind))
    return LanguageModelConfig(
        attention=layers[0] if len(set(kinds)) == 1 else layers,
        block=_read_block(recipe, block, fields),
        num_layers=len(layers),
        vocabulary=fields.size("vocab_size"),
        max_tokens=find_longest(recipe, fields, kinds) or fields.size(LONGEST),
        positions="none",
        tied_head=recipe.tied is not None
        and fields.flag("tie_word_embeddings", default=recipe.tied),
        head_bias=read_flag(fields, recipe.head_bias),
        scale_embedding=block.scales_embedding,
        logit_cap=_optional(fields, block.logit_cap),
    )


def _read_block(recipe: Recipe, block: Block, fields: Fields) -> BlockConfig:
    dense = read_dense(recipe, fields)
    name = fields.text(block.activation, default="")
    if fields.family == "gemma" and name == "gelu":
        # Older files say "gelu", and transformers uses the approximation.
        name = "gelu_pytorch_tanh"
    known = GATED if dense.gated else PLAIN
    if name not in known:
        raise fields.refuse(block.activation, f"one of {', '.join(known)}")
    if dense.bias == dense.gated and not isinstance(recipe.mlp_bias, bool):
        raise fields.refuse(recipe.mlp_bias[0], str(not dense.gated).lower())
    return BlockConfig(
        d_ff=dense.d_ff,
        activation=known[name],
        norm=block.norm,
        norm_placement=block.placement,
        norm_eps=fields.number(block.eps),
        bias=block.norm == "layernorm",
        parallel=read_flag(fields, block.parallel),
    )


def _attend(recipe: Recipe, block: Block, fields: Fields, kind: Kind) -> AttentionConfig:
    config = read_head_config(recipe, fields, kind)
    size, position = config.size_per_head, config.position
    if position.rotary_dim(size) != int(size * position.rotary_fraction):
        expected = f"a share that rotates an even number of the {size} channels"
        raise fields.refuse("partial_rotary_factor", expected)
    own = rotary_fields(recipe, fields, kind.mixing)
    scaling = read_scaling(own, position.rotary_dim(size), position.rotary_base)
    return replace(
        config,
        position=replace(position, scaling=scaling),
        scale=ScaleConfig(
            channels=_optional(fields, block.scale),
            norm_eps=fields.number(block.eps),
            norm_adds_one=block.norm == "rmsnorm-plus-one",
        ),
    )


def _optional(fields: Fields, name: str | None) -> float | None:
    return None if name is None or not fields.has(name) else fields.number(name)


def read_gpt2(fields: Fields) -> LanguageModelConfig:
    """Return the network of a GPT-2, whose fields have different names."""
    absent = dict.fromkeys(("scale_attn_by_inverse_layer_idx", "add_cross_attention"), (False,))
    fields.allow({"scale_attn_weights": (True,), **absent})
    activation = fields.text("activation_function", default="gelu_new")
    if activation not in PLAIN:
        raise fields.refuse("activation_function", f"one of {', '.join(PLAIN)}")
    heads, d_model = fields.size("n_head"), fields.size("n_embd")
    return LanguageModelConfig(
        attention=Heads(d_model=d_model, count=heads, kv_count=heads).attend(
            bias=True, out_bias=True
        ),
        block=BlockConfig(
            d_ff=fields.size("n_inner", default=4 * d_model),
            activation=PLAIN[activation],
            norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        ),
        num_layers=fields.layers("n_layer"),
        vocabulary=fields.size("vocab_size"),
        max_tokens=fields.size("n_positions"),
        positions="learned",
        tied_head=fields.flag("tie_word_embeddings", default=True),
    )
