"""Lists each tensor's names in transformers, llama.cpp and qkvary, one table per architecture.

Torch-free. Each row of a table also states how transformers lays out the values of the tensor.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

StockArchitecture = Literal["gpt2", "llama", "deepseek"]
TITLES: Mapping[StockArchitecture, str] = {
    "gpt2": "GPT-2",
    "llama": "Llama",
    "deepseek": "DeepSeek V3",
}
GGUF_NAMES: Mapping[StockArchitecture, str] = {
    "gpt2": "gpt2",
    "llama": "llama",
    "deepseek": "deepseek2",
}

Change = Literal["", "transposed", "interleaved"]
"""The layout of a tensor in transformers, if it differs from that in llama.cpp and qkvary.

A ``transposed`` matrix has the shape [inputs, outputs] instead of [outputs, inputs]. In an
``interleaved`` tensor, the query, key and value of each head are next to each other.
"""


class Row(NamedTuple):
    """The names of one tensor in transformers, in llama.cpp and in qkvary.

    The names lack the suffix ``.weight`` or ``.bias``; ``{}`` stands for the number of the layer.
    """

    theirs: str
    gguf: str
    ours: str
    """The name in our network without sharing, or several names separated by commas if the tensor
    joins several of our tensors. Some tensors of DeepSeek exist in no network of ours;
    ``latent_networks`` makes them."""
    change: Change = ""


def _layer(theirs: str, gguf: str, ours: str, change: Change = "") -> Row:
    parts = (f"stack.blocks.{{}}.{part}" for part in ours.split(","))
    return Row(theirs, f"blk.{{}}.{gguf}", ",".join(parts), change)


_LLAMA, _GPT2, _NEOX = "model.layers.{}", "transformer.h.{}", "gpt_neox.layers.{}"
_QKV = "attention.q_proj,attention.k_proj,attention.v_proj"


_ATTENTION = (
    _layer(f"{_LLAMA}.self_attn.q_proj", "attn_q", "attention.q_proj"),
    _layer(f"{_LLAMA}.self_attn.k_proj", "attn_k", "attention.k_proj"),
    _layer(f"{_LLAMA}.self_attn.v_proj", "attn_v", "attention.v_proj"),
    _layer(f"{_LLAMA}.self_attn.q_norm", "attn_q_norm", "attention.query_norm"),
    _layer(f"{_LLAMA}.self_attn.k_norm", "attn_k_norm", "attention.key_norm"),
)
_EMBEDDING = Row("model.embed_tokens", "token_embd", "embedding")
_BEFORE = _layer(f"{_LLAMA}.input_layernorm", "attn_norm", "attention_norm")
_BETWEEN = _layer(f"{_LLAMA}.post_attention_layernorm", "ffn_norm", "feed_forward_norm")
_OUTPUT = _layer(f"{_LLAMA}.self_attn.o_proj", "attn_output", "attention.o_proj")
_DOWN = _layer(f"{_LLAMA}.mlp.down_proj", "ffn_down", "feed_forward.down")
_GATED = (
    _layer(f"{_LLAMA}.mlp.gate_proj", "ffn_gate", "feed_forward.gate"),
    _layer(f"{_LLAMA}.mlp.up_proj", "ffn_up", "feed_forward.up"),
    _DOWN,
)
_ENDS = (
    Row("model.norm", "output_norm", "stack.final_norm"),
    Row("lm_head", "output", "head_weight"),
)


def _after(ours: str, theirs: str, gguf: str) -> Row:
    return _layer(f"{_LLAMA}.{theirs}_layernorm", gguf, ours)


ROWS: Mapping[str, tuple[Row, ...]] = {
    "llama": (_EMBEDDING, _BEFORE, *_ATTENTION, _OUTPUT, _BETWEEN, *_GATED, *_ENDS),
    "gemma2": (
        _EMBEDDING,
        _BEFORE,
        *_ATTENTION,
        _OUTPUT,
        _after("attention_output_norm", "post_attention", "post_attention_norm"),
        _after("feed_forward_norm", "pre_feedforward", "ffn_norm"),
        *_GATED,
        _after("feed_forward_output_norm", "post_feedforward", "post_ffw_norm"),
        *_ENDS,
    ),
    "olmo2": (
        _EMBEDDING,
        *_ATTENTION,
        _OUTPUT,
        _after("attention_norm", "post_attention", "post_attention_norm"),
        *_GATED,
        _after("feed_forward_norm", "post_feedforward", "post_ffw_norm"),
        *_ENDS,
    ),
    "phi3": (
        _EMBEDDING,
        _BEFORE,
        _layer(f"{_LLAMA}.self_attn.qkv_proj", "attn_qkv", _QKV),
        _OUTPUT,
        _BETWEEN,
        _layer(f"{_LLAMA}.mlp.gate_up_proj", "ffn_up", "feed_forward.gate,feed_forward.up"),
        _DOWN,
        *_ENDS,
    ),
    "starcoder2": (
        _EMBEDDING,
        _BEFORE,
        *_ATTENTION,
        _OUTPUT,
        _BETWEEN,
        _layer(f"{_LLAMA}.mlp.c_fc", "ffn_up", "feed_forward.up"),
        _layer(f"{_LLAMA}.mlp.c_proj", "ffn_down", "feed_forward.down"),
        *_ENDS,
    ),
    "gpt_neox": (
        Row("gpt_neox.embed_in", "token_embd", "embedding"),
        _layer(f"{_NEOX}.input_layernorm", "attn_norm", "attention_norm"),
        _layer(f"{_NEOX}.attention.query_key_value", "attn_qkv", _QKV, "interleaved"),
        _layer(f"{_NEOX}.attention.dense", "attn_output", "attention.o_proj"),
        _layer(f"{_NEOX}.post_attention_layernorm", "ffn_norm", "feed_forward_norm"),
        _layer(f"{_NEOX}.mlp.dense_h_to_4h", "ffn_up", "feed_forward.up"),
        _layer(f"{_NEOX}.mlp.dense_4h_to_h", "ffn_down", "feed_forward.down"),
        Row("gpt_neox.final_layer_norm", "output_norm", "stack.final_norm"),
        Row("embed_out", "output", "head_weight"),
    ),
    "deepseek": (
        _EMBEDDING,
        _BEFORE,
        _layer(f"{_LLAMA}.self_attn.q_proj", "attn_q", "attention.latent_query"),
        _layer(f"{_LLAMA}.self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", "attention.latent_down"),
        _layer(f"{_LLAMA}.self_attn.kv_a_layernorm", "attn_kv_a_norm", "attention.kv_norm"),
        _layer(f"{_LLAMA}.self_attn.kv_b_proj", "attn_kv_b", "attention.latent_up"),
        _OUTPUT,
        _BETWEEN,
        *_GATED,
        *_ENDS,
    ),
    "gpt2": (
        Row("transformer.wte", "token_embd", "embedding"),
        Row("transformer.wpe", "position_embd", "position_embedding"),
        _layer(f"{_GPT2}.ln_1", "attn_norm", "attention_norm"),
        _layer(f"{_GPT2}.attn.c_attn", "attn_qkv", _QKV, "transposed"),
        _layer(f"{_GPT2}.attn.c_proj", "attn_output", "attention.o_proj", "transposed"),
        _layer(f"{_GPT2}.ln_2", "ffn_norm", "feed_forward_norm"),
        _layer(f"{_GPT2}.mlp.c_fc", "ffn_up", "feed_forward.up", "transposed"),
        _layer(f"{_GPT2}.mlp.c_proj", "ffn_down", "feed_forward.down", "transposed"),
        Row("transformer.ln_f", "output_norm", "stack.final_norm"),
        Row("lm_head", "output", "head_weight"),
    ),
}
"""The rows of each table, in the order in which an export writes the tensors. A network need not
have a tensor for every row."""
_TABLES: Mapping[str, str] = {
    "gemma3": "gemma2",
    "gemma3_text": "gemma2",
    "olmo3": "olmo2",
    "deepseek_v3": "deepseek",
}
_PARAMETERS = ("embedding", "position_embedding", "head_weight")
"""Names of parameters. All other names belong to modules. A module has a weight and a bias."""


def list_tensors(family: str, layers: int) -> Iterator[Row]:
    """Yield the names of all tensors of a family (a ``model_type``) or of a stock architecture."""
    for row in ROWS.get(_TABLES.get(family, family), ROWS["llama"]):
        kinds = ("weight",) if row.ours in _PARAMETERS else ("weight", "bias")
        for layer in range(layers if "{}" in row.gguf else 1):
            for kind in kinds:
                names = (row.theirs, row.gguf, *row.ours.split(","))
                theirs, gguf, *ours = (f"{name.format(layer)}.{kind}" for name in names)
                whole = row.ours if row.ours in _PARAMETERS else ",".join(ours)
                yield Row(theirs, gguf, whole, row.change)
