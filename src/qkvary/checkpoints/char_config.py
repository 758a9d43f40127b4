"""Reads configurations of post-norm character models with learned positions. Torch-free."""

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.families.fields import Fields
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.arch.sharing import share
from qkvary.arch.variants import Variant
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import explain

# The supported network; other values are rejected.
_EXPECTED: dict[str, object] = {
    "ffn_activation": "relu",
    "attention_scale": "1/sqrt(head_dim)",
    "linear_bias": True,
    "layer_norm_eps": 1e-5,
}


def read_config(
    config: dict[str, object], where: str, *, most_layers: int = 1000
) -> LanguageModelConfig:
    """Return the configuration of the network."""
    for name, expected in _EXPECTED.items():
        if config.get(name, expected) != expected:
            raise UsageError(f"{where} has {name} {config[name]!r}, expected {expected!r}")
    with explain(where):
        fields = Fields(config, "character")
        heads, layers = fields.size("num_heads"), fields.size("num_layers")
        kv_heads = fields.size("num_kv_heads", default=heads)
        if layers > most_layers:
            raise ValueError(f"expected at most {most_layers} layers, got {layers}")
        attention = AttentionConfig(
            d_model=fields.size("d_model"),
            num_heads=heads,
            variant=Variant(
                sharing=share("q", "k", "v"), num_kv_heads=None if kv_heads == heads else kv_heads
            ),
            head_dim=fields.size("head_dim"),
            causal=True,
        )
        block = BlockConfig(
            d_ff=fields.size("d_ff"), activation="relu", norm_placement="post-final"
        )
        return LanguageModelConfig(
            attention=attention,
            block=block,
            num_layers=layers,
            vocabulary=fields.size("vocab_size"),
            max_tokens=fields.size("max_len"),
            positions="learned",
            tied_head=False,
            head_bias=True,
        )
