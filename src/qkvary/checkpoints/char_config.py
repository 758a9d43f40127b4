"""The configuration of post-norm character models with learned positions. Torch-free."""

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.arch.sharing import share
from qkvary.arch.variants import Variant
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import LARGEST_SIZE

_SIZES = ("vocab_size", "d_model", "num_layers", "num_heads", "head_dim", "d_ff", "max_len")
# The only supported network; other values are rejected.
_EXPECTED: dict[str, object] = {
    "ffn_activation": "relu",
    "attention_scale": "1/sqrt(head_dim)",
    "linear_bias": True,
    "layer_norm_eps": 1e-5,
}


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


def _read_size(config: dict[str, object], name: str, where: str) -> int:
    size = config.get(name)
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_SIZE:
        shown = repr(size)
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        raise DamagedError(
            f"{where} has {name} {shown}, expected a whole number from 1 to {LARGEST_SIZE:,}"
        )
    return size
