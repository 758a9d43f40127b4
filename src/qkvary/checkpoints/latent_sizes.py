"""The sizes of DeepSeek V3 without experts, from its configuration in transformers.

Torch-free.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from qkvary.arch.attention import KV_NORM_EPS
from qkvary.arch.families.attention_fields import read_rotation, rotary_section
from qkvary.arch.families.fields import Fields
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import short_reason

LATENT = "deepseek_v3"
_EXPECTED: dict[str, object] = {
    "q_lora_rank": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "rope_interleave": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """The sizes of a network, whose layers are all dense."""

    d_model: int
    d_ff: int
    num_layers: int
    heads: int
    head_dim: int
    """Channels of a head's key and value without the rotary ones."""
    rope: int
    width: int
    """Channels of the tensor that keys and values are made of."""
    max_tokens: int
    tied_head: bool
    rotary_base: float
    norm_eps: float
    kv_norm_eps: float = KV_NORM_EPS
    """The epsilon of the norm of that tensor."""


def read_latent_sizes(fields: Fields) -> LatentSizes:
    """Return the sizes of a configuration."""
    for name, expected in _EXPECTED.items():
        if fields.content.get(name, expected) != expected:
            raise fields.refuse(name, json.dumps(expected))
    layers, head_dim = fields.size("num_hidden_layers"), fields.size("v_head_dim")
    if fields.count("first_k_dense_replace") != layers:
        raise fields.refuse("first_k_dense_replace", f"{layers}, so that no layer has experts,")
    if fields.size("qk_nope_head_dim") != head_dim:
        raise fields.refuse("qk_nope_head_dim", f"{head_dim}, the v_head_dim,")
    section = rotary_section(fields)
    if section.text("rope_type", "type", default="default") != "default":
        name = "rope_type" if section.has("rope_type") else "type"
        raise section.refuse(name, "plain rotary positions (default)")
    return LatentSizes(
        d_model=fields.size("hidden_size"),
        d_ff=fields.size("intermediate_size"),
        num_layers=layers,
        heads=fields.size("num_attention_heads"),
        head_dim=head_dim,
        rope=fields.size("qk_rope_head_dim"),
        width=fields.size("kv_lora_rank"),
        max_tokens=fields.size("max_position_embeddings"),
        tied_head=fields.flag("tie_word_embeddings", default=False),
        rotary_base=read_rotation(fields).rotary_base,
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
    )


@contextmanager
def explain(where: str, what: str = "does not describe a network") -> Generator[None]:
    """Turn the ``ValueError`` of an invalid value into a ``DamagedError`` that names the file."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise DamagedError(f"{where} {what}: {short_reason(error)}") from None
