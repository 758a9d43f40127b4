"""The decoders that differ from Llama in a few choices: each family is one entry.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping
from functools import partial

from qkvary.arch.families import recurrent
from qkvary.arch.families.fields import Reader
from qkvary.arch.families.recipes import (
    CHUNKED,
    WIDE,
    AttentionRecipe,
    Dense,
    LayerKinds,
    Norms,
    Recipe,
    Rotary,
    Routed,
    read,
)

_NO_BIAS = AttentionRecipe(bias=False)
_NO_OUT_BIAS = AttentionRecipe(out_bias=False)
_NORMED = AttentionRecipe(head_norm="qk-norm")
_NORMED_WIDE = AttentionRecipe(head_norm="qk-norm-wide")
_NORMED_NO_BIAS = AttentionRecipe(bias=False, head_norm="qk-norm")
_GATED_QUERY = AttentionRecipe(head_norm="qk-norm", gate="query")
_LATENT = AttentionRecipe(latent=True)
_NO_WINDOWS = LayerKinds(windows="none")
_WINDOWS = LayerKinds(windows="all")
_UPPER = LayerKinds(windows="upper", switched=True, window=4096)
_EVERY_FOURTH = LayerKinds(period=4)
_LISTED = LayerKinds(needs_types=True)
_CONVOLUTIONS = LayerKinds(others="conv", recurrent={"conv": recurrent.read_short_convolution})
_DELTA = LayerKinds(
    period=4, others="linear_attention", recurrent={"linear_attention": recurrent.read_gated_delta}
)
_MAMBA2 = {"mamba": recurrent.read_mamba2, "linear_attention": recurrent.read_mamba2}
_MLP_BIAS = Dense(bias=("mlp_bias", False))
_NORM_BIAS = Norms(bias=True)
_ONE_NORM = Norms(count=1)
_FOUR_NORMS = Norms(count=4)
_WIDE_EXPERTS = Routed(width=WIDE)
_WIDE_SHARED = Routed(width=WIDE, shared="width")
_COUNTED = Routed(shared="count", shared_count=1)
_GATED_SHARING = Routed(shared="width", gated_sharing=True)
_QUARTER = Rotary(share=0.25)
_HALF = Rotary(share=0.5)
_CAUSAL: Mapping[str, tuple[object, ...]] = {"use_bidirectional_attention": (False,)}

RECIPES: Mapping[str, Recipe] = {
    # Llama's block, with other biases, norms or windows.
    "llama": Recipe(kinds=_NO_WINDOWS, dense=_MLP_BIAS),
    "mistral": Recipe(
        attention=AttentionRecipe(bias=False, may_lack_kv_heads=False),
        kinds=LayerKinds(windows="all", window=4096),
    ),
    **dict.fromkeys(
        ("phi3", "phi4_multimodal", "phi4mm"), Recipe(attention=_NO_BIAS, kinds=_WINDOWS)
    ),
    **dict.fromkeys(
        ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        Recipe(
            attention=AttentionRecipe(bias=True, out_bias=False, may_lack_kv_heads=False),
            kinds=_UPPER,
        ),
    ),
    **dict.fromkeys(
        ("qwen3", "qwen3_vl_text"),
        Recipe(
            attention=AttentionRecipe(head_norm="qk-norm", may_lack_kv_heads=False, head_dim=128),
            kinds=_UPPER,
        ),
    ),
    "apertus": Recipe(attention=_NORMED, dense=Dense(gated=False), entries=2),
    "arcee": Recipe(dense=Dense(bias=("mlp_bias", False), gated=False)),
    "beam": Recipe(
        # One gate bias per head.
        attention=AttentionRecipe(head_norm="qk-norm", gate="channel", per_head=1),
        kinds=_LISTED,
        norms=_FOUR_NORMS,
        routed=Routed(),
        defaults={"first_k_dense_replace": 3},
    ),
    "bitnet": Recipe(norms=Norms(inner=True)),
    "cohere": Recipe(
        attention=AttentionRecipe(head_norm="qk-norm-wide", is_normed=("use_qk_norm", False)),
        norms=_ONE_NORM,
        tied=True,
    ),
    "cohere2": Recipe(kinds=_EVERY_FOURTH, norms=_ONE_NORM, tied=True),
    "cohere_compass_text": Recipe(norms=_ONE_NORM, tied=True, ignored=("head_dim",)),
    "cwm": Recipe(attention=_NO_BIAS, kinds=_LISTED, dense=_MLP_BIAS),
    "emu3_text_model": Recipe(attention=_NO_BIAS, kinds=_NO_WINDOWS),
    "ernie4_5": Recipe(
        attention=AttentionRecipe(bias=("use_bias", False)),
        dense=Dense(bias=("use_bias", False)),
        tied=True,
    ),
    "exaone4": Recipe(attention=_NORMED_NO_BIAS, kinds=_EVERY_FOURTH),
    "glm": Recipe(attention=_NO_OUT_BIAS, rotary=_HALF),
    "glm4": Recipe(attention=_NO_OUT_BIAS, norms=_FOUR_NORMS, rotary=_HALF),
    "granite": Recipe(dense=_MLP_BIAS),
    "granite_swa": Recipe(
        attention=AttentionRecipe(per_head=1), kinds=_LISTED, dense=_MLP_BIAS, tied=True
    ),
    "diffllama": Recipe(attention=AttentionRecipe(head_entries=4)),
    "hyperclovax": Recipe(dense=_MLP_BIAS, norms=Norms(post=("use_post_norm", True))),
    "helium": Recipe(attention=_NO_OUT_BIAS, dense=_MLP_BIAS),
    "hunyuan_v1_dense": Recipe(attention=_NORMED),
    "internlm3": Recipe(
        attention=AttentionRecipe(bias=("qkv_bias", False), out_bias=("bias", False)),
        dense=Dense(bias=("bias", False)),
    ),
    "iquestcoder": Recipe(dense=_MLP_BIAS),
    "jais2": Recipe(
        attention=AttentionRecipe(bias=("attention_bias", True)),
        dense=Dense(bias=("mlp_bias", True), gated=False),
        norms=_NORM_BIAS,
    ),
    "ministral": Recipe(attention=_NO_BIAS, kinds=LayerKinds(windows="all", window=4096)),
    "ministral3": Recipe(attention=_NO_BIAS, kinds=_WINDOWS),
    "nanochat": Recipe(dense=Dense(gated=False), norms=Norms(count=0, final=False)),
    "nemotron": Recipe(
        dense=Dense(bias=("mlp_bias", False), gated=False), norms=_NORM_BIAS, rotary=_HALF
    ),
    "olmo": Recipe(norms=Norms(count=0, final=False)),
    "olmo2": Recipe(attention=_NORMED_WIDE, kinds=_NO_WINDOWS),
    "olmo3": Recipe(
        attention=_NORMED_WIDE,
        kinds=LayerKinds(period=4, window=4096),
        # Only layers with full attention have scaled positions.
        rotary=Rotary(base=500_000.0, local_base=("rope_theta", 500_000.0)),
    ),
    "seed_oss": Recipe(
        attention=AttentionRecipe(
            head_dim=128, bias=("attention_bias", True), out_bias=("attention_out_bias", False)
        ),
        kinds=_NO_WINDOWS,
        dense=_MLP_BIAS,
    ),
    "smollm3": Recipe(dense=_MLP_BIAS, tied=True, rotary=Rotary(base=2_000_000.0)),
    "stablelm": Recipe(
        attention=AttentionRecipe(
            bias=("use_qkv_bias", False),
            out_bias=False,
            head_norm="qk-norm-wide",
            is_normed=("qk_layernorm", False),
        ),
        kinds=_NO_WINDOWS,
        norms=Norms(parallel=("use_parallel_residual", False), bias=True),
        ignored=("head_dim",),
        rotary=_QUARTER,
    ),
    "starcoder2": Recipe(
        attention=AttentionRecipe(bias=("use_bias", True)),
        kinds=_WINDOWS,
        dense=Dense(bias=("use_bias", True), gated=False),
        norms=_NORM_BIAS,
        tied=True,
    ),
    "vaultgemma": Recipe(attention=AttentionRecipe(head_dim=256), kinds=_LISTED, tied=True),
    "gpt_neox": Recipe(
        attention=AttentionRecipe(bias=("attention_bias", True)),
        kinds=_NO_WINDOWS,
        dense=Dense(bias=True, gated=False),
        norms=_NORM_BIAS,
        rotary=_QUARTER,
        ignored=("num_key_value_heads", "head_dim"),
    ),
    "gemma": Recipe(
        attention=AttentionRecipe(may_lack_kv_heads=False, head_dim=256),
        kinds=_NO_WINDOWS,
        tied=True,
        required=_CAUSAL,
    ),
    "gemma2": Recipe(
        attention=AttentionRecipe(may_lack_kv_heads=False, head_dim=256),
        kinds=LayerKinds(period=2, window=4096),
        norms=_FOUR_NORMS,
        tied=True,
        required=_CAUSAL,
    ),
    **dict.fromkeys(
        ("gemma3_text", "gemma3"),
        Recipe(
            attention=AttentionRecipe(head_norm="qk-norm", head_dim=256),
            kinds=LayerKinds(period=6, window=4096),
            norms=_FOUR_NORMS,
            tied=True,
            rotary=Rotary(base=1_000_000.0, local_base=("rope_local_base_freq", 10_000.0)),
            required=_CAUSAL,
            defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208},
        ),
    ),
    # Mixtures of experts.
    "mixtral": Recipe(
        attention=AttentionRecipe(bias=False, may_lack_kv_heads=False),
        kinds=_WINDOWS,
        routed=_WIDE_EXPERTS,
        rotary=Rotary(base=1000000.0),
    ),
    **dict.fromkeys(
        ("qwen3_moe", "qwen3_vl_moe_text"),
        Recipe(
            attention=AttentionRecipe(head_norm="qk-norm", may_lack_kv_heads=False),
            kinds=LayerKinds(windows="all", switched=True, window=4096),
            routed=Routed(),
        ),
    ),
    "afmoe": Recipe(
        attention=AttentionRecipe(head_norm="qk-norm", gate="channel"),
        kinds=_EVERY_FOURTH,
        norms=_FOUR_NORMS,
        routed=Routed(shared="count", corrected=True),
    ),
    "aria_text": Recipe(dense=_MLP_BIAS, routed=Routed(width=WIDE, shared="count", shared_count=2)),
    "cohere2_moe": Recipe(
        kinds=_EVERY_FOURTH, norms=_ONE_NORM, routed=Routed(width=WIDE, shared="count"), tied=True
    ),
    "dots1": Recipe(attention=_NORMED, routed=Routed(shared="count")),
    "ernie4_5_moe": Recipe(
        attention=AttentionRecipe(bias=("use_bias", False)),
        dense=Dense(bias=("use_bias", False)),
        routed=Routed(shared="count", shared_count=2, corrected=True),
        tied=True,
        head_bias=("use_bias", False),
    ),
    "exaone_moe": Recipe(attention=_NORMED_NO_BIAS, kinds=_EVERY_FOURTH, routed=_COUNTED),
    "flex_olmo": Recipe(attention=_NORMED_WIDE, kinds=_NO_WINDOWS, routed=_WIDE_EXPERTS),
    "flint": Recipe(
        attention=AttentionRecipe(head_norm="qk-norm", per_head=1),
        kinds=_LISTED,
        routed=Routed(shared="width"),
    ),
    "glm4_moe": Recipe(
        attention=AttentionRecipe(
            out_bias=False, head_norm="qk-norm", is_normed=("use_qk_norm", False)
        ),
        routed=_COUNTED,
        rotary=_HALF,
    ),
    "gpt_oss": Recipe(
        attention=AttentionRecipe(bias=("attention_bias", True), per_head=1),
        kinds=LayerKinds(period=2),
        routed=Routed(width=WIDE, bias=True),
    ),
    "granitemoe": Recipe(routed=_WIDE_EXPERTS),
    "granitemoeshared": Recipe(routed=_WIDE_SHARED),
    "granitemoe_swa": Recipe(
        attention=AttentionRecipe(per_head=1), kinds=_LISTED, routed=_WIDE_SHARED
    ),
    "hunyuan_v1_moe": Recipe(attention=_NORMED, routed=Routed(width=WIDE, shared="one")),
    "hy_v3": Recipe(attention=_NORMED, dense=_MLP_BIAS, routed=_COUNTED),
    "kolibri1": Recipe(
        attention=_NORMED_NO_BIAS, kinds=_LISTED, norms=_FOUR_NORMS, routed=Routed(shared="width")
    ),
    "laguna": Recipe(
        attention=AttentionRecipe(head_norm="qk-norm", gate="head"),
        routed=Routed(shared="width", corrected=True),
        required={"gating": (True, "per-head")},
    ),
    "llama4_text": Recipe(
        kinds=LayerKinds(others=CHUNKED, needs_types=True),
        dense=Dense(width=("intermediate_size_mlp",)),
        routed=Routed(width=WIDE, shared="one"),
    ),
    "mellum": Recipe(attention=_NORMED, routed=Routed()),
    "minimax_m2": Recipe(
        attention=AttentionRecipe(bias=False, head_norm="qk-norm-wide"), routed=_WIDE_EXPERTS
    ),
    "olmoe": Recipe(attention=_NORMED_WIDE, routed=_WIDE_EXPERTS),
    "phimoe": Recipe(
        kinds=_WINDOWS, norms=_NORM_BIAS, routed=_WIDE_EXPERTS, head_bias=("lm_head_bias", False)
    ),
    "qwen2_moe": Recipe(
        attention=AttentionRecipe(bias=("qkv_bias", True), out_bias=False), routed=_GATED_SHARING
    ),
    "solar_open": Recipe(attention=_NO_OUT_BIAS, routed=_COUNTED),
    # Layers with a state, between layers of attention.
    "bailing_hybrid": Recipe(
        attention=AttentionRecipe(latent=True, gate="head"),
        kinds=LayerKinds(
            period=6,
            others="linear_attention",
            recurrent={"linear_attention": recurrent.read_kimi_delta},
        ),
        routed=_COUNTED,
        tied=None,
        defaults={"first_k_dense_replace": 2},
    ),
    "bamba": Recipe(
        kinds=LayerKinds(others="mamba", recurrent=_MAMBA2), dense=_MLP_BIAS, rotary=_HALF
    ),
    "granitemoehybrid": Recipe(
        kinds=LayerKinds(needs_types=True, recurrent=_MAMBA2),
        dense=Dense(width=("shared_intermediate_size",)),
        routed=_WIDE_SHARED,
    ),
    "jamba": Recipe(
        attention=_NO_BIAS,
        kinds=LayerKinds(others="mamba", recurrent={"mamba": recurrent.read_mamba}),
        routed=_WIDE_EXPERTS,
    ),
    "kimi_linear": Recipe(
        attention=_LATENT,
        kinds=LayerKinds(
            needs_types=True, recurrent={"linear_attention": recurrent.read_kimi_delta}
        ),
        routed=_COUNTED,
        tied=None,
    ),
    "lfm2": Recipe(
        attention=_NORMED_NO_BIAS, kinds=_CONVOLUTIONS, dense=Dense(adjusted=True), tied=True
    ),
    "lfm2_moe": Recipe(attention=_NORMED_NO_BIAS, kinds=_CONVOLUTIONS, routed=Routed(), tied=True),
    "lfm3": Recipe(
        attention=AttentionRecipe(
            head_norm="qk-norm", gate="head", is_gated=("use_attention_gate", True)
        ),
        kinds=_CONVOLUTIONS,
        norms=Norms(post=("use_sandwich_norm", True)),
        tied=True,
    ),
    "minimax": Recipe(
        attention=_NO_BIAS,
        kinds=LayerKinds(
            needs_types=True, recurrent={"linear_attention": recurrent.read_lightning}
        ),
        routed=_WIDE_EXPERTS,
    ),
    "olmo_hybrid": Recipe(
        attention=_NORMED_WIDE,
        kinds=LayerKinds(
            needs_types=True, recurrent={"linear_attention": recurrent.read_gated_delta}
        ),
    ),
    "qwen3_next": Recipe(
        attention=_GATED_QUERY, kinds=_DELTA, routed=_GATED_SHARING, rotary=_QUARTER
    ),
    "qwen3_5_text": Recipe(attention=_GATED_QUERY, kinds=_DELTA, rotary=_QUARTER),
    "qwen3_5_moe_text": Recipe(
        attention=_GATED_QUERY, kinds=_DELTA, routed=_GATED_SHARING, rotary=_QUARTER
    ),
    # Keys and values made from one latent.
    "axk1": Recipe(attention=_LATENT, routed=Routed(shared="count", shared_count=1, norms=1)),
    "deepseek_v32": Recipe(attention=_LATENT, kinds=_NO_WINDOWS, routed=_COUNTED),
    "glm_moe_dsa": Recipe(attention=_LATENT, kinds=_NO_WINDOWS, routed=_COUNTED),
    "glm4_moe_lite": Recipe(attention=_LATENT, routed=_COUNTED),
    "minicpm3": Recipe(attention=_LATENT, dense=_MLP_BIAS, tied=True),
    "youtu": Recipe(attention=_LATENT, tied=True),
}
"""The families of this file, by ``model_type``."""

READERS: Mapping[str, Reader] = {name: partial(read, recipe) for name, recipe in RECIPES.items()}
