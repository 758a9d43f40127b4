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

_CAUSAL: Mapping[str, tuple[object, ...]] = {"use_bidirectional_attention": (False,)}

RECIPES: Mapping[str, Recipe] = {
    # Llama's block, with other biases, norms or windows.
    "llama": Recipe(kinds=LayerKinds(windows="none"), dense=Dense(bias=("mlp_bias", False))),
    "mistral": Recipe(
        attention=AttentionRecipe(bias=False, may_lack_kv_heads=False),
        kinds=LayerKinds(windows="all", window=4096),
    ),
    **dict.fromkeys(
        ("phi3", "phi4_multimodal", "phi4mm"),
        Recipe(attention=AttentionRecipe(bias=False), kinds=LayerKinds(windows="all")),
    ),
    **dict.fromkeys(
        ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        Recipe(
            attention=AttentionRecipe(bias=True, out_bias=False, may_lack_kv_heads=False),
            kinds=LayerKinds(windows="upper", switched=True, window=4096),
        ),
    ),
    **dict.fromkeys(
        ("qwen3", "qwen3_vl_text"),
        Recipe(
            attention=AttentionRecipe(head_norm="head", may_lack_kv_heads=False, head_dim=128),
            kinds=LayerKinds(windows="upper", switched=True, window=4096),
        ),
    ),
    "apertus": Recipe(
        attention=AttentionRecipe(head_norm="head"), dense=Dense(gated=False), entries=2
    ),
    "arcee": Recipe(dense=Dense(bias=("mlp_bias", False), gated=False)),
    "beam": Recipe(
        # One gate bias per head.
        attention=AttentionRecipe(head_norm="head", gate="channel", per_head=1),
        kinds=LayerKinds(needs_types=True),
        norms=Norms(count=4),
        routed=Routed(),
        defaults={"first_k_dense_replace": 3},
    ),
    "bitnet": Recipe(norms=Norms(inner=True)),
    "cohere": Recipe(
        attention=AttentionRecipe(head_norm="heads", is_normed=("use_qk_norm", False)),
        norms=Norms(count=1),
        tied=True,
    ),
    "cohere2": Recipe(kinds=LayerKinds(period=4), norms=Norms(count=1), tied=True),
    "cohere_compass_text": Recipe(norms=Norms(count=1), tied=True, ignored=("head_dim",)),
    "cwm": Recipe(
        attention=AttentionRecipe(bias=False),
        kinds=LayerKinds(needs_types=True),
        dense=Dense(bias=("mlp_bias", False)),
    ),
    "emu3_text_model": Recipe(
        attention=AttentionRecipe(bias=False), kinds=LayerKinds(windows="none")
    ),
    "ernie4_5": Recipe(
        attention=AttentionRecipe(bias=("use_bias", False)),
        dense=Dense(bias=("use_bias", False)),
        tied=True,
    ),
    "exaone4": Recipe(
        attention=AttentionRecipe(bias=False, head_norm="head"), kinds=LayerKinds(period=4)
    ),
    "glm": Recipe(attention=AttentionRecipe(out_bias=False), rotary=Rotary(share=0.5)),
    "glm4": Recipe(
        attention=AttentionRecipe(out_bias=False), norms=Norms(count=4), rotary=Rotary(share=0.5)
    ),
    "granite": Recipe(dense=Dense(bias=("mlp_bias", False))),
    "granite_swa": Recipe(
        attention=AttentionRecipe(per_head=1),
        kinds=LayerKinds(needs_types=True),
        dense=Dense(bias=("mlp_bias", False)),
        tied=True,
    ),
    "diffllama": Recipe(attention=AttentionRecipe(head_entries=4)),
    "hyperclovax": Recipe(
        dense=Dense(bias=("mlp_bias", False)), norms=Norms(post=("use_post_norm", True))
    ),
    "helium": Recipe(
        attention=AttentionRecipe(out_bias=False), dense=Dense(bias=("mlp_bias", False))
    ),
    "hunyuan_v1_dense": Recipe(attention=AttentionRecipe(head_norm="head")),
    "internlm3": Recipe(
        attention=AttentionRecipe(bias=("qkv_bias", False), out_bias=("bias", False)),
        dense=Dense(bias=("bias", False)),
    ),
    "iquestcoder": Recipe(dense=Dense(bias=("mlp_bias", False))),
    "jais2": Recipe(
        attention=AttentionRecipe(bias=("attention_bias", True)),
        dense=Dense(bias=("mlp_bias", True), gated=False),
        norms=Norms(bias=True),
    ),
    "ministral": Recipe(
        attention=AttentionRecipe(bias=False), kinds=LayerKinds(windows="all", window=4096)
    ),
    "ministral3": Recipe(attention=AttentionRecipe(bias=False), kinds=LayerKinds(windows="all")),
    "nanochat": Recipe(dense=Dense(gated=False), norms=Norms(count=0, final=False)),
    "nemotron": Recipe(
        dense=Dense(bias=("mlp_bias", False), gated=False),
        norms=Norms(bias=True),
        rotary=Rotary(share=0.5),
    ),
    "olmo": Recipe(norms=Norms(count=0, final=False)),
    "olmo2": Recipe(attention=AttentionRecipe(head_norm="heads"), kinds=LayerKinds(windows="none")),
    "olmo3": Recipe(
        attention=AttentionRecipe(head_norm="heads"),
        kinds=LayerKinds(period=4, window=4096),
        # Only layers that see everything have scaled positions.
        rotary=Rotary(base=500_000.0, local_base=("rope_theta", 500_000.0)),
    ),
    "seed_oss": Recipe(
        attention=AttentionRecipe(
            head_dim=128, bias=("attention_bias", True), out_bias=("attention_out_bias", False)
        ),
        kinds=LayerKinds(windows="none"),
        dense=Dense(bias=("mlp_bias", False)),
    ),
    "smollm3": Recipe(
        dense=Dense(bias=("mlp_bias", False)), tied=True, rotary=Rotary(base=2_000_000.0)
    ),
    "stablelm": Recipe(
        attention=AttentionRecipe(
            bias=("use_qkv_bias", False),
            out_bias=False,
            head_norm="heads",
            is_normed=("qk_layernorm", False),
        ),
        kinds=LayerKinds(windows="none"),
        norms=Norms(parallel=("use_parallel_residual", False), bias=True),
        ignored=("head_dim",),
        rotary=Rotary(share=0.25),
    ),
    "starcoder2": Recipe(
        attention=AttentionRecipe(bias=("use_bias", True)),
        kinds=LayerKinds(windows="all"),
        dense=Dense(bias=("use_bias", True), gated=False),
        norms=Norms(bias=True),
        tied=True,
    ),
    "vaultgemma": Recipe(
        attention=AttentionRecipe(head_dim=256), kinds=LayerKinds(needs_types=True), tied=True
    ),
    "gpt_neox": Recipe(
        attention=AttentionRecipe(bias=("attention_bias", True)),
        kinds=LayerKinds(windows="none"),
        dense=Dense(bias=True, gated=False),
        norms=Norms(bias=True),
        rotary=Rotary(share=0.25),
        ignored=("num_key_value_heads", "head_dim"),
    ),
    "gemma": Recipe(
        attention=AttentionRecipe(may_lack_kv_heads=False, head_dim=256),
        kinds=LayerKinds(windows="none"),
        tied=True,
        required=_CAUSAL,
    ),
    "gemma2": Recipe(
        attention=AttentionRecipe(may_lack_kv_heads=False, head_dim=256),
        kinds=LayerKinds(period=2, window=4096),
        norms=Norms(count=4),
        tied=True,
        required=_CAUSAL,
    ),
    **dict.fromkeys(
        ("gemma3_text", "gemma3"),
        Recipe(
            attention=AttentionRecipe(head_norm="head", head_dim=256),
            kinds=LayerKinds(period=6, window=4096),
            norms=Norms(count=4),
            tied=True,
            rotary=Rotary(base=1_000_000.0, local_base=("rope_local_base_freq", 10_000.0)),
            required=_CAUSAL,
            defaults={
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "vocab_size": 262_208,
            },
        ),
    ),
    # Mixtures of experts.
    "mixtral": Recipe(
        attention=AttentionRecipe(bias=False, may_lack_kv_heads=False),
        kinds=LayerKinds(windows="all"),
        routed=Routed(width=WIDE),
        rotary=Rotary(base=1000000.0),
    ),
    **dict.fromkeys(
        ("qwen3_moe", "qwen3_vl_moe_text"),
        Recipe(
            attention=AttentionRecipe(head_norm="head", may_lack_kv_heads=False),
            kinds=LayerKinds(windows="all", switched=True, window=4096),
            routed=Routed(),
        ),
    ),
    "afmoe": Recipe(
        attention=AttentionRecipe(head_norm="head", gate="channel"),
        kinds=LayerKinds(period=4),
        norms=Norms(count=4),
        routed=Routed(shared="count", corrected=True),
    ),
    "aria_text": Recipe(
        dense=Dense(bias=("mlp_bias", False)),
        routed=Routed(width=WIDE, shared="count", shared_count=2),
    ),
    "cohere2_moe": Recipe(
        kinds=LayerKinds(period=4),
        norms=Norms(count=1),
        routed=Routed(width=WIDE, shared="count"),
        tied=True,
    ),
    "dots1": Recipe(attention=AttentionRecipe(head_norm="head"), routed=Routed(shared="count")),
    "ernie4_5_moe": Recipe(
        attention=AttentionRecipe(bias=("use_bias", False)),
        dense=Dense(bias=("use_bias", False)),
        routed=Routed(shared="count", shared_count=2, corrected=True),
        tied=True,
        head_bias=("use_bias", False),
    ),
    "exaone_moe": Recipe(
        attention=AttentionRecipe(bias=False, head_norm="head"),
        kinds=LayerKinds(period=4),
        routed=Routed(shared="count", shared_count=1),
    ),
    "flex_olmo": Recipe(
        attention=AttentionRecipe(head_norm="heads"),
        kinds=LayerKinds(windows="none"),
        routed=Routed(width=WIDE),
    ),
    "flint": Recipe(
        attention=AttentionRecipe(head_norm="head", per_head=1),
        kinds=LayerKinds(needs_types=True),
        routed=Routed(shared="width"),
    ),
    "glm4_moe": Recipe(
        attention=AttentionRecipe(
            out_bias=False, head_norm="head", is_normed=("use_qk_norm", False)
        ),
        routed=Routed(shared="count", shared_count=1),
        rotary=Rotary(share=0.5),
    ),
    "gpt_oss": Recipe(
        attention=AttentionRecipe(bias=("attention_bias", True), per_head=1),
        kinds=LayerKinds(period=2),
        routed=Routed(width=WIDE, bias=True),
    ),
    "granitemoe": Recipe(routed=Routed(width=WIDE)),
    "granitemoeshared": Recipe(routed=Routed(width=WIDE, shared="width")),
    "granitemoe_swa": Recipe(
        attention=AttentionRecipe(per_head=1),
        kinds=LayerKinds(needs_types=True),
        routed=Routed(width=WIDE, shared="width"),
    ),
    "hunyuan_v1_moe": Recipe(
        attention=AttentionRecipe(head_norm="head"), routed=Routed(width=WIDE, shared="one")
    ),
    "hy_v3": Recipe(
        attention=AttentionRecipe(head_norm="head"),
        dense=Dense(bias=("mlp_bias", False)),
        routed=Routed(shared="count", shared_count=1),
    ),
    "kolibri1": Recipe(
        attention=AttentionRecipe(bias=False, head_norm="head"),
        kinds=LayerKinds(needs_types=True),
        norms=Norms(count=4),
        routed=Routed(shared="width"),
    ),
    "laguna": Recipe(
        attention=AttentionRecipe(head_norm="head", gate="head"),
        routed=Routed(shared="width", corrected=True),
        required={"gating": (True, "per-head")},
    ),
    "llama4_text": Recipe(
        kinds=LayerKinds(others=CHUNKED, needs_types=True),
        dense=Dense(width=("intermediate_size_mlp",)),
        routed=Routed(width=WIDE, shared="one"),
    ),
    "mellum": Recipe(attention=AttentionRecipe(head_norm="head"), routed=Routed()),
    "minimax_m2": Recipe(
        attention=AttentionRecipe(bias=False, head_norm="heads"), routed=Routed(width=WIDE)
    ),
    "olmoe": Recipe(attention=AttentionRecipe(head_norm="heads"), routed=Routed(width=WIDE)),
    "phimoe": Recipe(
        kinds=LayerKinds(windows="all"),
        norms=Norms(bias=True),
        routed=Routed(width=WIDE),
        head_bias=("lm_head_bias", False),
    ),
    "qwen2_moe": Recipe(
        attention=AttentionRecipe(bias=("qkv_bias", True), out_bias=False),
        routed=Routed(shared="width", gated_sharing=True),
    ),
    "solar_open": Recipe(
        attention=AttentionRecipe(out_bias=False), routed=Routed(shared="count", shared_count=1)
    ),
    # Layers with a state, between layers of attention.
    "bailing_hybrid": Recipe(
        attention=AttentionRecipe(latent=True, gate="head"),
        kinds=LayerKinds(
            period=6,
            others="linear_attention",
            recurrent={"linear_attention": recurrent.read_kimi_delta},
        ),
        routed=Routed(shared="count", shared_count=1),
        tied=None,
        defaults={"first_k_dense_replace": 2},
    ),
    "bamba": Recipe(
        kinds=LayerKinds(
            others="mamba",
            recurrent={"mamba": recurrent.read_mamba2, "linear_attention": recurrent.read_mamba2},
        ),
        dense=Dense(bias=("mlp_bias", False)),
        rotary=Rotary(share=0.5),
    ),
    "granitemoehybrid": Recipe(
        kinds=LayerKinds(
            needs_types=True,
            recurrent={"mamba": recurrent.read_mamba2, "linear_attention": recurrent.read_mamba2},
        ),
        dense=Dense(width=("shared_intermediate_size",)),
        routed=Routed(width=WIDE, shared="width"),
    ),
    "jamba": Recipe(
        attention=AttentionRecipe(bias=False),
        kinds=LayerKinds(others="mamba", recurrent={"mamba": recurrent.read_mamba}),
        routed=Routed(width=WIDE),
    ),
    "kimi_linear": Recipe(
        attention=AttentionRecipe(latent=True),
        kinds=LayerKinds(
            needs_types=True, recurrent={"linear_attention": recurrent.read_kimi_delta}
        ),
        routed=Routed(shared="count", shared_count=1),
        tied=None,
    ),
    "lfm2": Recipe(
        attention=AttentionRecipe(bias=False, head_norm="head"),
        kinds=LayerKinds(others="conv", recurrent={"conv": recurrent.read_short_convolution}),
        dense=Dense(adjusted=True),
        tied=True,
    ),
    "lfm2_moe": Recipe(
        attention=AttentionRecipe(bias=False, head_norm="head"),
        kinds=LayerKinds(others="conv", recurrent={"conv": recurrent.read_short_convolution}),
        routed=Routed(),
        tied=True,
    ),
    "lfm3": Recipe(
        attention=AttentionRecipe(
            head_norm="head", gate="head", is_gated=("use_attention_gate", True)
        ),
        kinds=LayerKinds(others="conv", recurrent={"conv": recurrent.read_short_convolution}),
        norms=Norms(post=("use_sandwich_norm", True)),
        tied=True,
    ),
    "minimax": Recipe(
        attention=AttentionRecipe(bias=False),
        kinds=LayerKinds(
            needs_types=True, recurrent={"linear_attention": recurrent.read_lightning}
        ),
        routed=Routed(width=WIDE),
    ),
    "olmo_hybrid": Recipe(
        attention=AttentionRecipe(head_norm="heads"),
        kinds=LayerKinds(
            needs_types=True, recurrent={"linear_attention": recurrent.read_gated_delta}
        ),
    ),
    "qwen3_next": Recipe(
        attention=AttentionRecipe(head_norm="head", gate="query"),
        kinds=LayerKinds(
            period=4,
            others="linear_attention",
            recurrent={"linear_attention": recurrent.read_gated_delta},
        ),
        routed=Routed(shared="width", gated_sharing=True),
        rotary=Rotary(share=0.25),
    ),
    "qwen3_5_text": Recipe(
        attention=AttentionRecipe(head_norm="head", gate="query"),
        kinds=LayerKinds(
            period=4,
            others="linear_attention",
            recurrent={"linear_attention": recurrent.read_gated_delta},
        ),
        rotary=Rotary(share=0.25),
    ),
    "qwen3_5_moe_text": Recipe(
        attention=AttentionRecipe(head_norm="head", gate="query"),
        kinds=LayerKinds(
            period=4,
            others="linear_attention",
            recurrent={"linear_attention": recurrent.read_gated_delta},
        ),
        routed=Routed(shared="width", gated_sharing=True),
        rotary=Rotary(share=0.25),
    ),
    # Keys and values made from one latent.
    "axk1": Recipe(
        attention=AttentionRecipe(latent=True),
        routed=Routed(shared="count", shared_count=1, norms=1),
    ),
    "deepseek_v32": Recipe(
        attention=AttentionRecipe(latent=True),
        kinds=LayerKinds(windows="none"),
        routed=Routed(shared="count", shared_count=1),
    ),
    "glm_moe_dsa": Recipe(
        attention=AttentionRecipe(latent=True),
        kinds=LayerKinds(windows="none"),
        routed=Routed(shared="count", shared_count=1),
    ),
    "glm4_moe_lite": Recipe(
        attention=AttentionRecipe(latent=True), routed=Routed(shared="count", shared_count=1)
    ),
    "minicpm3": Recipe(
        attention=AttentionRecipe(latent=True), dense=Dense(bias=("mlp_bias", False)), tied=True
    ),
    "youtu": Recipe(attention=AttentionRecipe(latent=True), tied=True),
}
"""The families of this file, by ``model_type``."""

READERS: Mapping[str, Reader] = {name: partial(read, recipe) for name, recipe in RECIPES.items()}
