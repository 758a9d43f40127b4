"""A configuration without meaning is refused with its field; a missing size is named."""

import re

import pytest

from qkvary.arch.families.table import read_model
from tests.arch.families.config_files import load

GLOBAL, LOCAL = "full_attention", "sliding_attention"
WHOLE = "a whole number in 1 ... 2^40 for "

REFUSED: dict[str, list[tuple[dict[str, object], str]]] = {
    "falcon-40b": [
        ({"num_ln_in_parallel_attn": 3}, "1 or 2 for num_ln_in_parallel_attn"),
        ({"num_kv_heads": 7}, "KV heads that divide 128 query heads, got 7; choices: 1, 2"),
    ],
    "gpt2": [({"add_cross_attention": True}, "false for add_cross_attention")],
    "pythia-160m": [({"rotary_pct": 2}, "a rotary fraction in (0, 1], got 2.0")],
    "llama-3.1-8b": [
        ({"head_dim": None, "hidden_size": 4097}, "d_model divisible by num_heads, got 4097 and"),
        ({"rope_scaling": "yarn"}, "a nested configuration for rope_scaling"),
    ],
    "qwen2.5-0.5b": [
        ({"layer_types": [LOCAL] * 24}, "full_attention everywhere without a sliding window"),
        ({"layer_types": [GLOBAL] * 23}, "24 entries for layer_types"),
    ],
    "qwen3-30b-a3b": [({"mlp_only_layers": [3, "four"]}, "a list of layer numbers for mlp_only")],
    "mixtral-8x7b": [({"num_experts_per_tok": 9}, "at most 8 active experts, got 9")],
    "mistral-7b": [({"sliding_window": 0}, f"{WHOLE}sliding_window")],
    "t5-small": [
        ({"feed_forward_proj": "gated-swish-gelu"}, "an activation such as relu or gated-gelu"),
        ({"num_decoder_layers": 10_001}, "at most 10,000 layers for num_decoder_layers"),
    ],
    "whisper-tiny": [
        ({"decoder_attention_heads": 7}, "d_model divisible by num_heads, got 384 and 7"),
        ({"num_mel_bins": 2**40}, "inputs of Linear in 1 ... 2^40, got 3298534883328"),
    ],
    "gemma-2b": [({"use_bidirectional_attention": "yes"}, "false for use_bidirectional_attention")],
    "gemma-4-31b": [
        ({"use_bidirectional_attention": "all"}, "vision for use_bidirectional_attention"),
        ({"num_kv_shared_layers": 60}, "a layer of each type with its own keys and values"),
        ({"per_layer_config": {"5": {"intermediate_size": 320}}}, "nothing but head_dim and num_"),
    ],
    "gemma-4-e2b": [
        ({"per_layer_config": {"34": {"head_dim": 320}}}, "to have the same heads as layer 14"),
    ],
    "deepseek-v3": [
        ({"moe_layer_freq": 2}, "1 for moe_layer_freq of a deepseek_v3 configuration"),
        ({"first_k_dense_replace": -3}, "in 0 ... 2^40 for first_k_dense_replace"),
        ({"num_attention_heads": 2**39}, "outputs of Linear in 1 ... 2^40, got 105553116266496"),
    ],
    "deepseek-v4-flash": [
        ({"num_key_value_heads": 8}, "1 for num_key_value_heads"),
        ({"compress_ratios": [16] * 43}, "43 entries, each one of 0, 4, 128 for compress_ratios"),
        (
            {"mlp_layer_types": ["dense"] * 43},
            "43 entries, each one of hash_moe, moe for mlp_layer_types",
        ),
        ({"o_groups": 3}, "o_groups that divide 32768 channels, got 3"),
    ],
}
"""Changes of published files, and words of the answer."""


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
