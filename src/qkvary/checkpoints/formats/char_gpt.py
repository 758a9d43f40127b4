"""Loads post-norm character models with learned positions (safetensors and ``config.json``).

The configuration lists the characters. A LayerNorm follows every sublayer and the last block; the
feed-forward network uses ReLU, and the output head has its own weight and bias.
"""

from pathlib import Path

from qkvary.arch.families.fields import Fields
from qkvary.checkpoints import char_config
from qkvary.checkpoints.formats.transformers_folder import (
    CONFIG,
    WEIGHTS,
    collect,
    read_config,
)
from qkvary.checkpoints.models import LoadedModel, build_model, parse_weights
from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.storage.errors import DamagedError
from qkvary.storage.untrusted_files import explain, read_file

_NAMES = {
    "token_embedding.weight": "embedding",
    "pos_embedding.weight": "position_embedding",
    "ln_f.weight": "stack.final_norm.weight",
    "ln_f.bias": "stack.final_norm.bias",
    "lm_head.weight": "head_weight",
    "lm_head.bias": "head_bias",
}
_LAYER_NAMES = {
    "self_attn.W_q": "attention.q_proj",
    "self_attn.W_k": "attention.k_proj",
    "self_attn.W_v": "attention.v_proj",
    "self_attn.W_o": "attention.o_proj",
    "norm1": "attention_norm",
    "ffn.linear1": "feed_forward.up",
    "ffn.linear2": "feed_forward.down",
    "norm2": "feed_forward_norm",
}


def load(folder: Path) -> LoadedModel:
    """Load a model and its character tokenizer."""
    config = read_config(folder)
    where, weights = str(folder / CONFIG), str(folder / WEIGHTS)
    with explain(where):
        tokenizer = CharacterTokenizer(Fields(config, "character").text("chars", default=""))
    tensors = parse_weights(read_file(folder / WEIGHTS), weights)
    network = char_config.read_config(config, where, most_layers=len(tensors))
    if tokenizer.vocabulary != network.vocabulary:
        raise DamagedError(
            f"{where} has a vocabulary of {network.vocabulary} tokens, but its tokenizer has "
            f"{tokenizer.vocabulary}"
        )
    names = dict(_NAMES)
    for layer in range(network.num_layers):
        for theirs, ours in _LAYER_NAMES.items():
            for kind in ("weight", "bias"):
                name = f"stack.blocks.{layer}.{ours}.{kind}"
                names[f"blocks.{layer}.{theirs}.{kind}"] = name
    # Unknown names stay; building the network refuses them.
    renamed = collect(((names.get(name, name), one) for name, one in tensors.items()), weights)
    return build_model(network, renamed, tokenizer, weights)
