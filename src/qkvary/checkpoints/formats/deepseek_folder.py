"""Networks of DeepSeek V3 without experts, as transformers saves them, read without transformers.

What ``qkvary export --to deepseek`` writes is read as it was; a network of others is refused where
it has experts or a query of low rank.
"""

from pathlib import Path
from typing import Any, cast

from qkvary.checkpoints.formats.transformers_folder import (
    CONFIG,
    WEIGHTS,
    read_own_tokenizer,
    read_part,
)
from qkvary.checkpoints.latent_reading import LatentSizes, read_latent_network
from qkvary.checkpoints.models import LoadedModel, build_model, parse_weights
from qkvary.data.model_configs import parse_config
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, read_file

FORMAT = "a DeepSeek V3 without experts that transformers saved (model.safetensors, config.json)"
LARGEST_SIZE = 2**24

_MODEL_TYPE = b'"deepseek_v3"'
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
    """Return whether a path is such a folder, or its weights."""
    folder = path.parent if path.name == WEIGHTS else path
    if not ((folder / WEIGHTS).is_file() and (folder / CONFIG).is_file()):
        return False
    return _MODEL_TYPE in read_file(folder / CONFIG, limit=MAX_SIDE_FILE_BYTES)


def load(path: Path) -> LoadedModel:
    """Load the network, and the tokenizer that an export of ours has.

    Raises:
        UsageError: if a file cannot be read, or the network is of an unsupported kind.
        DamagedError: if a file is damaged.
        UnsafeError: if it is a pickle.
    """
    folder = path.parent if path.name == WEIGHTS else path
    where = str(folder / CONFIG)
    try:
        fields = parse_config(read_part(folder, CONFIG, limit=MAX_SIDE_FILE_BYTES), where)
    except ValueError as error:
        raise DamagedError(f"{where} cannot be used: {error}") from None
    weights = parse_weights(read_part(folder, WEIGHTS), str(folder / WEIGHTS))
    sizes = _read_sizes(fields, where, most_layers=len(weights))
    try:
        config, named = read_latent_network(sizes, weights, where)
    except UsageError:
        raise
    except ValueError as error:
        raise DamagedError(f"{where} does not describe a network: {error}") from None
    return build_model(config, named, read_own_tokenizer(folder), str(folder / WEIGHTS))


def tokenizer_files(_vocabulary: int) -> tuple[str, ...]:
    """Return no name: an export of ours has its tokenizer."""
    return ()


def _read_sizes(fields: dict[str, Any], where: str, *, most_layers: int) -> LatentSizes:
    for name, expected in _EXPECTED.items():
        if fields.get(name, expected) != expected:
            raise UsageError(f"{where} has {name} {fields[name]!r:.40}, expected {expected!r}")
    sizes = {ours: _read_size(fields, name, where) for ours, name in _SIZES.items()}
    if sizes["layers"] > most_layers:
        raise DamagedError(f"{where} has {sizes['layers']:,} layers and fewer tensors")
    if fields.get("first_k_dense_replace", 0) != sizes["layers"]:
        raise UsageError(f"{where} has layers with experts, expected dense ones")
    if fields.get("qk_nope_head_dim") != sizes["head_dim"]:
        raise UsageError(f"{where} has keys and values of different widths, expected one")
    rotary = cast("dict[str, Any]", fields.get("rope_parameters") or {})
    if rotary.get("rope_type", "default") != "default":
        raise UsageError(f"{where} has scaled rotary positions, expected the default ones")
    base, epsilon = rotary.get("rope_theta", 10_000.0), fields.get("rms_norm_eps", 1e-6)
    if not all(isinstance(one, int | float) for one in (base, epsilon)):
        raise DamagedError(f"{where} has a rope_theta or rms_norm_eps that is no number")
    return LatentSizes(**sizes, rotary_base=float(base), norm_eps=float(epsilon))


def _read_size(fields: dict[str, Any], name: str, where: str) -> int:
    size = fields.get(name)
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_SIZE:
        raise DamagedError(f"{where} has {name} {size!r:.40}, expected 1 to {LARGEST_SIZE:,}")
    return size
