"""Networks of DeepSeek V3 without experts, as transformers saves them, read without transformers.

What ``qkvary export --to deepseek`` writes reads back exactly. Other DeepSeek networks are refused
if they have experts or a low-rank query.
"""

import json
from pathlib import Path

from qkvary.arch.families.attention_fields import read_rotation, rotary_section
from qkvary.arch.families.fields import Fields
from qkvary.checkpoints.contradictions import is_head_tied
from qkvary.checkpoints.formats.transformers_folder import (
    CONFIG,
    WEIGHTS,
    holds,
    read_folder,
    read_own_tokenizer,
    read_part,
)
from qkvary.checkpoints.latent_reading import LatentSizes, read_latent_network
from qkvary.checkpoints.models import LoadedModel, build_model, parse_weights
from qkvary.storage.errors import DamagedError, UsageError

FORMAT = "a DeepSeek V3 without experts that transformers saved (model.safetensors, config.json)"

TOKENIZER_FILES = ()

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_SIZES = {
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "head_dim": "v_head_dim",
    "rope": "qk_rope_head_dim",
    "width": "kv_lora_rank",
    "max_tokens": "max_position_embeddings",
}
_EXPECTED: dict[str, object] = {
    "q_lora_rank": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "rope_interleave": True,
}


def recognises(path: Path) -> bool:
    """Return whether a path is a folder of this format, or the file of its weights."""
    return holds(path, b'"deepseek_v3"')


def load(path: Path) -> LoadedModel:
    """Load the network, and the tokenizer that an export of ours has.

    Raises:
        UsageError: if the weights cannot be read, or the network is of an unsupported kind.
        DamagedError: if a file is damaged.
        UnsafeError: if it is a pickle.
    """
    folder, content = read_folder(path)
    where, fields = str(folder / CONFIG), Fields(content, "deepseek_v3")
    try:
        sizes, tied = _read_sizes(fields), fields.flag("tie_word_embeddings", default=False)
    except ValueError as error:
        raise UsageError(f"{where} cannot be used: {error}") from None
    weights = parse_weights(read_part(folder, WEIGHTS), str(folder / WEIGHTS))
    if sizes.layers > len(weights):
        raise DamagedError(f"{where} has {sizes.layers:,} layers but fewer tensors")
    if is_head_tied(weights.get(_EMBEDDING), weights.get(_HEAD), str(folder), declared=tied):
        weights.pop(_HEAD, None)
    elif _HEAD not in weights:
        raise DamagedError(f"{folder} lacks the tensor {_HEAD}")
    try:
        config, named = read_latent_network(sizes, weights, where)
    except UsageError:
        raise
    except ValueError as error:
        raise DamagedError(f"{where} does not describe a network: {error}") from None
    return build_model(config, named, read_own_tokenizer(folder), str(folder / WEIGHTS))


def read_config(_path: Path) -> None:
    """Return ``None``: only the weights tell which heads share keys."""


def _read_sizes(fields: Fields) -> LatentSizes:
    for name, expected in _EXPECTED.items():
        if fields.content.get(name, expected) != expected:
            raise fields.refuse(name, json.dumps(expected))
    sizes = {ours: fields.size(name) for ours, name in _SIZES.items()}
    if fields.count("first_k_dense_replace") != sizes["layers"]:
        raise fields.refuse(
            "first_k_dense_replace", f"{sizes['layers']}, so that no layer has experts,"
        )
    if fields.size("qk_nope_head_dim") != sizes["head_dim"]:
        raise fields.refuse("qk_nope_head_dim", f"{sizes['head_dim']}, the v_head_dim,")
    return LatentSizes(
        **sizes,
        rotary_base=_read_base(fields),
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
    )


def _read_base(fields: Fields) -> float:
    """Return the base of rotary positions, which must not be scaled."""
    section = rotary_section(fields)
    if section.text("rope_type", "type", default="default") != "default":
        name = "rope_type" if section.has("rope_type") else "type"
        raise section.refuse(name, "plain rotary positions (default)")
    return read_rotation(fields).rotary_base
