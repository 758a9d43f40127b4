"""Post-norm character models with learned positions: ``model.safetensors`` and a ``config.json``.

The configuration lists the characters. A LayerNorm follows every sublayer and the last block; the
feed-forward network is ReLU, the output has its own matrix and bias.
"""

from pathlib import Path

from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.arch.sharing import share
from qkvary.arch.variants import Variant
from qkvary.checkpoints.contradictions import collect
from qkvary.checkpoints.formats.transformers_folder import CONFIG, WEIGHTS, holds, read_folder
from qkvary.checkpoints.models import LARGEST_SIZE, LoadedModel, build_model, parse_weights
from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import read_file

FORMAT = "a character model (model.safetensors, and a config.json that lists its chars)"
TOKENIZER_FILES = ()

_SIZES = ("vocab_size", "d_model", "num_layers", "num_heads", "head_dim", "d_ff", "max_len")
# The supported network; other values are rejected.
_EXPECTED: dict[str, object] = {
    "ffn_activation": "relu",
    "attention_scale": "1/sqrt(head_dim)",
    "linear_bias": True,
    "layer_norm_eps": 1e-5,
}
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


def recognises(path: Path) -> bool:
    """Return whether a path is such a folder, or its weights."""
    return holds(path, b'"chars"')


def load(path: Path) -> LoadedModel:
    """Load a model with its characters.

    Raises:
        UsageError: if the weights cannot be read, or the network is of an unsupported kind.
        DamagedError: if a file is damaged.
        UnsafeError: if it is a pickle.
    """
    folder, config = read_folder(path)
    where = str(folder / CONFIG)
    try:
        tokenizer = CharacterTokenizer(_read_characters(config, where))
    except DamagedError:
        raise
    except ValueError as error:
        raise DamagedError(f"{where} cannot be used: {error}") from None
    tensors = parse_weights(read_file(folder / WEIGHTS), str(folder / WEIGHTS))
    network = read_config(config, where, most_layers=len(tensors))
    if tokenizer.vocabulary != network.vocabulary:
        raise DamagedError(
            f"{where} has a vocabulary of {network.vocabulary}, but its tokenizer one of "
            f"{tokenizer.vocabulary}"
        )
    weights = _rename(tensors, network.num_layers, str(folder / WEIGHTS))
    return build_model(network, weights, tokenizer, str(folder / WEIGHTS))


def read_config(
    config: dict[str, object], where: str, *, most_layers: int = 1000
) -> LanguageModelConfig:
    """Return the configuration of the network.

    Args:
        config: The contents of the file.
        where: The name of the file in messages.
        most_layers: The maximum number of layers.

    Raises:
        UsageError: for a network of an unsupported kind.
        DamagedError: for implausible sizes.
    """
    for name, expected in _EXPECTED.items():
        if config.get(name, expected) != expected:
            raise UsageError(f"{where} has {name} {config[name]!r}, expected {expected!r}")
    sizes = {name: _read_size(config, name, where) for name in _SIZES}
    heads, layers = sizes["num_heads"], sizes["num_layers"]
    kv_heads = _read_size({"num_kv_heads": heads, **config}, "num_kv_heads", where)
    if layers > most_layers:
        raise DamagedError(f"{where} has {layers} layers, expected at most {most_layers}")
    try:
        variant = Variant(
            sharing=share("q", "k", "v"), num_kv_heads=None if kv_heads == heads else kv_heads
        )
        attention = AttentionConfig(
            d_model=sizes["d_model"],
            num_heads=heads,
            variant=variant,
            head_dim=sizes["head_dim"],
            causal=True,
        )
        return LanguageModelConfig(
            attention=attention,
            block=BlockConfig(d_ff=sizes["d_ff"], activation="relu", norm_placement="post-final"),
            num_layers=layers,
            vocabulary=sizes["vocab_size"],
            max_tokens=sizes["max_len"],
            positions="learned",
            tied_head=False,
            head_bias=True,
        )
    except ValueError as error:
        raise DamagedError(f"{where} does not describe a network: {error}") from None


def _read_characters(config: dict[str, object], where: str) -> str:
    characters = config.get("chars")
    if not isinstance(characters, str):
        raise DamagedError(f"{where} has chars that are not text")
    return characters


def _read_size(config: dict[str, object], name: str, where: str) -> int:
    size = config.get(name)
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_SIZE:
        shown = repr(size)
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        raise DamagedError(
            f"{where} has {name} {shown}, expected a whole number from 1 to {LARGEST_SIZE:,}"
        )
    return size


def _rename(tensors: dict[str, Tensor], layers: int, where: str) -> dict[str, Tensor]:
    """Return the tensors under our names; unknown ones keep theirs and are rejected later."""
    names = dict(_NAMES)
    for layer in range(layers):
        for theirs, ours in _LAYER_NAMES.items():
            for kind in ("weight", "bias"):
                name = f"stack.blocks.{layer}.{ours}.{kind}"
                names[f"blocks.{layer}.{theirs}.{kind}"] = name
    return collect(((names.get(name, name), tensor) for name, tensor in tensors.items()), where)
