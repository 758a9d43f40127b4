"""GPT-2 and Llama as transformers saves them, read without transformers.

A ``config.json`` and safetensors, in one file or in shards with an index. GPT-2 keeps query, key
and value in one matrix that multiplies from the right; Llama's rotary embedding is ours.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from torch import Tensor

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.families.attention_fields import Heads
from qkvary.arch.families.fields import Fields
from qkvary.arch.networks import Activation, BlockConfig, LanguageModelConfig
from qkvary.checkpoints.formats.transformers_folder import (
    OWN_TOKENIZER,
    read_own_tokenizer,
    read_part,
)
from qkvary.checkpoints.models import LoadedModel, build_model, parse_weights
from qkvary.checkpoints.sentencepiece import read_pieces
from qkvary.data.model_configs import parse_config
from qkvary.data.tokenizer_files import load_tokenizer
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, read_file, refuse_pickles

FORMAT = "GPT-2 or Llama as transformers saves them (config.json, and safetensors)"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LIBRARY_TOKENIZER, PIECES = "tokenizer.json", "tokenizer.model"

_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
}
Weights = dict[str, Tensor]


def recognises(path: Path) -> bool:
    """Return whether a path is such a folder, or its weights."""
    folder = path.parent if path.name == WEIGHTS else path
    if not (folder / CONFIG).is_file():
        return False
    try:
        content = parse_config(read_file(folder / CONFIG, limit=MAX_SIDE_FILE_BYTES), CONFIG)
    except ValueError:
        return False
    return content.get("model_type") in _READERS


def load(path: Path) -> LoadedModel:
    """Load the network, and the tokenizer beside it.

    Raises:
        UsageError: if a file cannot be read, or the network has parts that ours have not.
        DamagedError: if a file is missing or damaged.
        UnsafeError: if the weights are a pickle.
    """
    folder = path.parent if path.name == WEIGHTS else path
    where = folder / CONFIG
    content = parse_config(read_part(folder, CONFIG, limit=MAX_SIDE_FILE_BYTES), str(where))
    read_config, rename = _READERS[str(content["model_type"])]
    try:
        config = read_config(Fields(content, str(content["model_type"])))
    except ValueError as error:
        raise UsageError(f"{where} cannot be used: {error}") from None
    tensors = _read_weights(folder)
    if config.num_layers > len(tensors):
        raise DamagedError(f"{where} has {config.num_layers} layers, more than tensors")
    try:
        weights = rename(tensors, config)
    except KeyError as error:
        raise DamagedError(f"{folder} lacks the tensor {error.args[0]}") from None
    return build_model(config, weights, _read_tokenizer(folder), str(folder))


def tokenizer_files(_vocabulary: int) -> tuple[str, ...]:
    """Return the names of tokenizers beside the weights."""
    return LIBRARY_TOKENIZER, PIECES


def _read_gpt2(fields: Fields) -> LanguageModelConfig:
    fixed = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
    for name, expected in {**fixed, "add_cross_attention": False}.items():
        if fields.flag(name, default=expected) != expected:
            raise fields.refuse(name, str(expected).lower())
    activation = fields.text("activation_function", default="gelu_new")
    if activation not in _ACTIVATIONS:
        raise fields.refuse("activation_function", f"one of {', '.join(_ACTIVATIONS)}")
    heads, d_model = fields.size("n_head"), fields.size("n_embd")
    return LanguageModelConfig(
        attention=Heads(d_model=d_model, count=heads, kv_count=heads).attend(
            bias=True, out_bias=True
        ),
        block=BlockConfig(
            d_ff=fields.size("n_inner", default=4 * d_model),
            activation=_ACTIVATIONS[activation],
            norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        ),
        num_layers=fields.layers("n_layer"),
        vocabulary=fields.size("vocab_size"),
        max_tokens=fields.size("n_positions"),
        positions="learned",
        tied_head=fields.flag("tie_word_embeddings", default=True),
    )


def _read_llama(fields: Fields) -> LanguageModelConfig:
    if fields.text("hidden_act", default="silu") != "silu":
        raise fields.refuse("hidden_act", "silu")
    if fields.flag("mlp_bias", default=False):
        raise fields.refuse("mlp_bias", "false")
    bias = fields.flag("attention_bias", default=False)
    heads = Heads(
        d_model=fields.size("hidden_size"),
        count=fields.size("num_attention_heads"),
        kv_count=fields.size("num_key_value_heads", default=fields.size("num_attention_heads")),
        dim=fields.optional_size("head_dim"),
    )
    return LanguageModelConfig(
        attention=_rotate(heads, bias, _read_base(fields)),
        block=BlockConfig(
            d_ff=fields.size("intermediate_size"),
            activation="swiglu",
            norm="rmsnorm",
            norm_eps=fields.number("rms_norm_eps", default=1e-6),
            bias=False,
        ),
        num_layers=fields.layers("num_hidden_layers"),
        vocabulary=fields.size("vocab_size"),
        max_tokens=fields.size("max_position_embeddings", default=2048),
        positions="none",
        tied_head=fields.flag("tie_word_embeddings", default=False),
    )


def _rotate(heads: Heads, bias: bool, base: float) -> AttentionConfig:
    rotation = PositionConfig(rotary_base=base, rotary_fraction=1.0)
    return heads.attend(positions="rotary", rotation=rotation, bias=bias, out_bias=bias)


def _read_base(fields: Fields) -> float:
    nested = fields.section("rope_parameters", "rope_scaling") or Fields({}, fields.family)
    kind = nested.text("rope_type", "type", default="default")
    if kind != "default":
        raise ValueError(f"expected plain rotary positions, got rope_type {kind}")
    return nested.number("rope_theta", default=fields.number("rope_theta", default=10_000.0))


def _read_weights(folder: Path) -> Weights:
    """Return the tensors of one file, or of all shards."""
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file():
        if not (folder / INDEX).is_file():
            refuse_pickles(folder)
            raise DamagedError(f"{folder} has no {WEIGHTS}")
        names = _list_shards(folder / INDEX)
    found: Weights = {}
    for name in names:
        if not (folder / name).is_file():
            raise DamagedError(f"{folder} has no {name}, which its index names")
        found |= parse_weights(read_part(folder, name), str(folder / name))
    return found


def _list_shards(index: Path) -> list[str]:
    try:
        content = parse_config(read_file(index, limit=MAX_SIDE_FILE_BYTES), str(index))
    except ValueError as error:
        raise DamagedError(str(error)) from None
    shards = content.get("weight_map")
    names = cast("Mapping[str, object]", shards).values() if isinstance(shards, Mapping) else ()
    found = sorted({name for name in names if isinstance(name, str)})
    if not found or any(Path(name).name != name for name in found):
        raise DamagedError(f"{index} does not name shards of its folder")
    return found


def _rename_gpt2(tensors: Weights, config: LanguageModelConfig) -> Weights:
    # The mask of older files, and the copy of a tied head.
    tensors = {
        name.removeprefix("transformer."): tensor
        for name, tensor in tensors.items()
        if not name.endswith((".attn.bias", ".attn.masked_bias"))
    }
    found = _take(
        tensors,
        config,
        {
            "wte.weight": "embedding",
            "wpe.weight": "position_embedding",
            "ln_f.weight": "stack.final_norm.weight",
            "ln_f.bias": "stack.final_norm.bias",
        },
    )
    names = {"ln_1": "attention_norm", "ln_2": "feed_forward_norm"}
    turned = {
        "attn.c_proj": "attention.o_proj",
        "mlp.c_fc": "feed_forward.up",
        "mlp.c_proj": "feed_forward.down",
    }
    for layer in range(config.num_layers):
        at, to = f"h.{layer}", f"stack.blocks.{layer}"
        for theirs, ours in {**names, **turned}.items():
            weight = tensors.pop(f"{at}.{theirs}.weight")
            found[f"{to}.{ours}.weight"] = _turn(weight) if theirs in turned else weight
            found[f"{to}.{ours}.bias"] = tensors.pop(f"{at}.{theirs}.bias")
        fused = _turn(tensors.pop(f"{at}.attn.c_attn.weight")).chunk(3)
        biases = tensors.pop(f"{at}.attn.c_attn.bias").chunk(3)
        for role, weight, bias in zip("qkv", fused, biases, strict=True):
            found[f"{to}.attention.{role}_proj.weight"] = weight.contiguous()
            found[f"{to}.attention.{role}_proj.bias"] = bias.contiguous()
    return found | tensors


def _rename_llama(tensors: Weights, config: LanguageModelConfig) -> Weights:
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(".inv_freq")}
    found = _take(
        tensors,
        config,
        {"model.embed_tokens.weight": "embedding", "model.norm.weight": "stack.final_norm.weight"},
    )
    names = {
        **{f"self_attn.{role}_proj": f"attention.{role}_proj" for role in "qkvo"},
        **{f"mlp.{part}_proj": f"feed_forward.{part}" for part in ("gate", "up", "down")},
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "feed_forward_norm",
    }
    for layer in range(config.num_layers):
        for theirs, ours in names.items():
            for kind in ("weight", "bias"):
                name = f"model.layers.{layer}.{theirs}.{kind}"
                if name in tensors or kind == "weight":
                    found[f"stack.blocks.{layer}.{ours}.{kind}"] = tensors.pop(name)
    return found | tensors


def _take(tensors: Weights, config: LanguageModelConfig, names: Mapping[str, str]) -> Weights:
    """Move tensors and the head to our names; unknown ones are left and refused later."""
    found = {ours: tensors.pop(theirs) for theirs, ours in names.items()}
    head = tensors.pop("lm_head.weight", None)
    if not config.tied_head:
        # Files of tied networks may lack it.
        found["head_weight"] = found["embedding"] if head is None else head
    return found


def _turn(weight: Tensor) -> Tensor:
    return weight.mT.contiguous()


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    if (folder / OWN_TOKENIZER).is_file():
        return read_own_tokenizer(folder)
    if (folder / LIBRARY_TOKENIZER).is_file():
        return load_tokenizer(str(folder))
    if (folder / PIECES).is_file():
        path = folder / PIECES
        return read_pieces(read_file(path, limit=MAX_SIDE_FILE_BYTES), str(path))
    return None


_READERS: Mapping[
    str,
    tuple[
        Callable[[Fields], LanguageModelConfig],
        Callable[[Weights, LanguageModelConfig], Weights],
    ],
] = {"gpt2": (_read_gpt2, _rename_gpt2), "llama": (_read_llama, _rename_llama)}
