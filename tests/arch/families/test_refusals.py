"""A configuration without meaning is refused with its field; a missing size is named."""

import re

import pytest

from qkvary.arch.families.table import read_model
from tests.arch.families.config_files import load, read_without

GLOBAL, LOCAL = "full_attention", "sliding_attention"
WHOLE = "a whole number in 1 ... 2^40 for "

REFUSED: dict[str, list[tuple[dict[str, object], str]]] = {
    "falcon-40b": [
        ({"num_ln_in_parallel_attn": 3}, "1 or 2 for num_ln_in_parallel_attn"),
        (
            {"new_decoder_architecture": False, "multi_query": False},
            "128, as many as query heads, or multi_query",
        ),
        ({"num_kv_heads": 7}, "KV heads that divide 128 query heads, got 7; choices: 1, 2"),
        (
            {"num_attention_heads": 2**39, "num_kv_heads": 3},
            "d_model divisible by num_heads, got 8192 and 549755813888",
        ),
    ],
    "gpt2": [({"add_cross_attention": True}, "false for add_cross_attention")],
    "pythia-160m": [({"rotary_pct": 2}, "a rotary fraction in (0, 1], got 2.0")],
    "llama-3.1-8b": [
        ({"num_key_value_heads": 5}, "KV heads that divide 32 query heads, got 5; choices: 1, 2"),
        (
            {"num_attention_heads": 2**39, "num_key_value_heads": 3},
            "KV heads that divide 549755813888 query heads, got 3; choices: 1, 2, 4, 8",
        ),
        (
            {"head_dim": None, "hidden_size": 4097},
            "d_model divisible by num_heads, got 4097 and 32",
        ),
        ({"head_dim": 1}, "at least 2 channels a head for rotary, got 1"),
        ({"rope_scaling": "yarn"}, "a nested configuration for rope_scaling"),
    ],
    "qwen2.5-0.5b": [
        ({"layer_types": [LOCAL] * 24}, "full_attention everywhere without a sliding window"),
        ({"layer_types": ["linear_attention"] * 24}, f"words out of {GLOBAL}, {LOCAL}"),
        ({"layer_types": [GLOBAL] * 23}, "24 entries for layer_types"),
    ],
    "qwen3-30b-a3b": [
        ({"mlp_only_layers": [3, "four"]}, "a list of layer numbers for mlp_only_layers"),
        ({"decoder_sparse_step": 0}, f"{WHOLE}decoder_sparse_step"),
    ],
    "mixtral-8x7b": [({"num_experts_per_tok": 9}, "at most 8 active experts, got 9")],
    "mistral-7b": [({"sliding_window": 0}, f"{WHOLE}sliding_window")],
    "t5-small": [
        ({"feed_forward_proj": "gated-swish-gelu"}, "or one of them after gated-"),
        ({"feed_forward_proj": 3}, "a text for feed_forward_proj"),
        ({"d_kv": -64}, f"{WHOLE}d_kv"),
        ({"num_decoder_layers": 10_001}, "at most 10,000 layers for num_decoder_layers"),
        ({"num_layers": "six"}, f"{WHOLE}num_layers"),
    ],
    "whisper-tiny": [
        ({"decoder_attention_heads": 7}, "d_model divisible by num_heads, got 384 and 7"),
        ({"encoder_attention_heads": 0}, f"{WHOLE}encoder_attention_heads"),
        ({"max_source_positions": 1.5}, f"{WHOLE}max_source_positions"),
        ({"encoder_layers": 2**39}, "at most 10,000 layers for encoder_layers"),
        ({"num_mel_bins": 2**40}, "inputs of a Linear in 1 ... 2^40, got 3298534883328"),
    ],
    "gemma-2b": [
        ({"use_bidirectional_attention": "yes"}, "false for use_bidirectional_attention"),
    ],
    "gemma-2-27b": [
        ({"use_bidirectional_attention": True}, "false for use_bidirectional_attention"),
        ({"sliding_window": 0}, f"{WHOLE}sliding_window"),
    ],
    "gemma-3-270m": [
        ({"use_bidirectional_attention": True}, "false for use_bidirectional_attention"),
        ({"layer_types": [GLOBAL] * 17}, "18 entries for layer_types"),
    ],
    "gemma-4-31b": [
        ({"layer_types": [GLOBAL] * 59}, "60 entries for layer_types"),
        ({"layer_types": ["chunked_attention"] * 60}, f"words out of {GLOBAL}, {LOCAL}"),
        ({"use_bidirectional_attention": "all"}, "null or vision, where text is causal"),
        ({"num_global_key_value_heads": 5}, "KV heads that divide 32 query heads, got 5"),
        ({"global_head_dim": "wide"}, f"{WHOLE}global_head_dim"),
        ({"hidden_size": -1}, f"{WHOLE}hidden_size"),
        ({"intermediate_size": 2**41}, f"{WHOLE}intermediate_size"),
        ({"num_hidden_layers": 10**6, "layer_types": None}, "at most 10,000 layers for num_hidden"),
        *(
            ({"num_kv_shared_layers": shared}, "a layer of each type before those that share")
            for shared in (60, 99)
        ),
        *(
            ({"per_layer_config": {layer: {"head_dim": 320}}}, "numbers of layers below 60")
            for layer in ("60", "last")
        ),
        (
            {"per_layer_config": {"5": {"intermediate_size": 320}}},
            "nothing but head_dim and num_key_value_heads for per_layer_config",
        ),
        ({"per_layer_config": {"5": 512}}, "a nested configuration for per_layer_config"),
        (
            {"rope_parameters": {GLOBAL: {"partial_rotary_factor": 1.5}}},
            "a rotary fraction in (0, 1], got 1.5",
        ),
    ],
    "gemma-4-e2b": [
        (
            {"per_layer_config": {"34": {"head_dim": 320}}},
            "layer 34 to have the heads of layer 14, which it reads",
        ),
        ({"hidden_size_per_layer_input": 2.5}, "in 0 ... 2^40 for hidden_size_per_layer_input"),
    ],
    "gemma-4-26b-a4b": [
        ({"top_k_experts": 129}, "at most 128 active experts, got 129"),
        ({"num_experts": None}, "the field num_experts in a gemma4 configuration"),
    ],
    "deepseek-v2-lite": [({"num_experts_per_tok": 65}, "at most 64 active experts, got 65")],
    "deepseek-v3": [
        ({"moe_layer_freq": 2}, "1, experts in every layer after the dense ones"),
        ({"kv_lora_rank": "512"}, f"{WHOLE}kv_lora_rank"),
        ({"first_k_dense_replace": -3}, "in 0 ... 2^40 for first_k_dense_replace"),
        ({"num_attention_heads": 2**39}, "outputs of a Linear in 1 ... 2^40, got 105553116266496"),
        (
            {"moe_intermediate_size": 2**40, "n_shared_experts": 2},
            "d_ff of a FeedForward in 1 ... 2^40, got 2199023255552",
        ),
    ],
    "deepseek-v4-flash": [
        ({"n_shared_experts": 2}, "1 for n_shared_experts"),
        ({"num_key_value_heads": 8}, "1, the one tensor that keys and values share"),
        ({"compress_ratios": [4] * 42}, "at least 43 entries for compress_ratios"),
        ({"compress_ratios": [16] * 43}, "numbers out of 0, 4, 128 for compress_ratios"),
        ({"compress_ratios": ["four"] * 43}, "numbers out of 0, 4, 128 for compress_ratios"),
        ({"compress_ratios": 4}, "a list for compress_ratios"),
        ({"layer_types": [LOCAL]}, "at least 43 entries for layer_types"),
        ({"layer_types": [GLOBAL] * 43}, f"words out of {LOCAL}, compressed_sparse_attention"),
        ({"mlp_layer_types": ["dense"] * 43}, "words out of hash_moe, moe for mlp_layer_types"),
        (
            {"compress_rates": {"compressed_sparse_attention": 0}},
            f"{WHOLE}compressed_sparse_attention",
        ),
        ({"o_groups": 3}, "o_groups that divide 32768 channels, got 3"),
        ({"sliding_window": None}, "the field sliding_window in a deepseek_v4 configuration"),
    ],
}
"""Changes of published files, and words of the answer."""

NEEDED = {
    "gpt2": "n_embd n_layer n_head n_positions vocab_size",
    "pythia-160m": "intermediate_size hidden_size",
    "opt-350m": "ffn_dim max_position_embeddings",
    "bloom-560m": "hidden_size",
    "falcon-40b": "num_hidden_layers",
    "phi-2": "num_attention_heads",
    "llama-3.1-8b": (
        "hidden_size intermediate_size num_hidden_layers num_attention_heads vocab_size"
    ),
    "mistral-7b": "num_key_value_heads",
    "mixtral-8x7b": "num_local_experts num_experts_per_tok",
    "qwen2.5-0.5b": "num_key_value_heads",
    "qwen3-8b": "num_key_value_heads",
    "qwen3-30b-a3b": "moe_intermediate_size num_experts",
    "phi-3-mini-4k": "vocab_size",
    "t5-small": "d_kv d_ff num_heads vocab_size",
    "whisper-tiny": (
        "d_model max_source_positions max_target_positions decoder_ffn_dim num_mel_bins"
    ),
    "gemma-2b": "num_key_value_heads vocab_size",
    "gemma-2-27b": "num_attention_heads",
    "gemma-3-270m": "hidden_size intermediate_size num_hidden_layers",
    "deepseek-v2-lite": "kv_lora_rank moe_intermediate_size intermediate_size",
    "deepseek-v3": "v_head_dim n_routed_experts num_hidden_layers",
    "deepseek-v4-flash": "head_dim o_lora_rank index_topk",
}
"""Sizes that a file cannot leave out."""


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [(name, *case) for name, cases in REFUSED.items() for case in cases],
)
def test_what_has_no_meaning_is_refused(name: str, changes: dict[str, object], words: str) -> None:
    content = load(name)
    text = content.get("text_config")
    changed = {"text_config": {**text, **changes}} if isinstance(text, dict) else changes
    with pytest.raises(ValueError, match=f"^expected .*{re.escape(words)}"):
        read_model({**content, **changed}, name)


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name in NEEDED for field in NEEDED[name].split()]
)
def test_a_missing_size_is_named(name: str, field: str) -> None:
    family = load(name)["model_type"]
    with pytest.raises(ValueError, match=rf"expected the field .*{field}.* in a {family} config"):
        read_without(name, field)
