"""The decoders that differ from Llama in a few choices. Each family is one table entry.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping
from functools import partial

from qkvary.arch.families import recurrent
from qkvary.arch.families.fields import Reader
from qkvary.arch.families.recipes import CHUNKED, WIDE, Flag, Recipe, Routed, read
from qkvary.arch.families.rotary_fields import GROWTH

_BIAS = ("attention_bias", True)
_MLP_BIAS: Flag = ("mlp_bias", False)
_USE_BIAS: Flag = ("use_bias", False)
_WIDE_EXPERTS = Routed(width=WIDE)
_WIDE_SHARED = Routed(width=WIDE, shared="width")
_COUNTED = Routed(shared="count", shared_count=1)
_GATED_SHARING = Routed(shared="width", gated_sharing=True)
_CONVOLUTION = {"conv": recurrent.read_short_convolution}
_GATED_DELTA = {"linear_attention": recurrent.read_gated_delta}
_KIMI_DELTA = {"linear_attention": recurrent.read_kimi_delta}
_MAMBA2 = {"mamba": recurrent.read_mamba2, "linear_attention": recurrent.read_mamba2}
_SWITCHED: Mapping[str, object] = {"sliding_window": 4096, "use_sliding_window": False}
_CAUSAL: Mapping[str, tuple[object, ...]] = {"use_bidirectional_attention": (False,)}

RECIPES: Mapping[str, Recipe] = {
    # Llama's block, with other biases, norms or windows.
    "llama": Recipe(windows="none", mlp_bias=_MLP_BIAS),
    "mistral": Recipe(
        bias=False, windows="all", defaults={"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    **dict.fromkeys(("phi3", "phi4_multimodal", "phi4mm"), Recipe(bias=False, windows="all")),
    "qwen2": Recipe(
        bias=True,
        out_bias=False,
        windows="upper",
        defaults={"num_key_value_heads": 32, **_SWITCHED},
    ),
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        Recipe(
            bias=True,
            out_bias=False,
            windows="upper",
            defaults={"num_key_value_heads": 8, **_SWITCHED},
        ),
    ),
    **dict.fromkeys(
        ("qwen3", "qwen3_vl_text"),
        Recipe(
            head_norm="qk-norm",
            windows="upper",
            defaults={"num_key_value_heads": 32, "head_dim": 128, **_SWITCHED},
        ),
    ),
    "apertus": Recipe(head_norm="qk-norm", gated=False, entries=2),
    "arcee": Recipe(mlp_bias=_MLP_BIAS, gated=False),
    "beam": Recipe(
        # One gate bias per head.
        head_norm="qk-norm",
        gate="channel",
        per_head=1,
        needs_types=True,
        norms=4,
        routed=Routed(),
        defaults={"first_k_dense_replace": 3},
    ),
    "bitnet": Recipe(inner_norms=True),
    "cohere": Recipe(
        head_norm="qk-norm-wide", is_normed=("use_qk_norm", False), norms=1, tied=True
    ),
    "cohere2": Recipe(period=4, norms=1, tied=True),
    "cohere_compass_text": Recipe(norms=1, tied=True, ignored=("head_dim",)),
    "cwm": Recipe(bias=False, needs_types=True, mlp_bias=_MLP_BIAS),
    "emu3_text_model": Recipe(bias=False, windows="none"),
    "ernie4_5": Recipe(bias=_USE_BIAS, mlp_bias=_USE_BIAS, tied=True),
    "exaone4": Recipe(bias=False, head_norm="qk-norm", period=4),
    "glm": Recipe(out_bias=False, rotary_share=0.5),
    "glm4": Recipe(out_bias=False, norms=4, rotary_share=0.5),
    "granite": Recipe(mlp_bias=_MLP_BIAS),
    "granite_swa": Recipe(per_head=1, needs_types=True, mlp_bias=_MLP_BIAS, tied=True),
    "diffllama": Recipe(head_entries=4),
    "hyperclovax": Recipe(mlp_bias=_MLP_BIAS, post_norms=("use_post_norm", True)),
    "helium": Recipe(out_bias=False, mlp_bias=_MLP_BIAS),
    "hunyuan_v1_dense": Recipe(head_norm="qk-norm"),
    "internlm3": Recipe(
        bias=("qkv_bias", False), out_bias=("bias", False), mlp_bias=("bias", False)
    ),
    "iquestcoder": Recipe(mlp_bias=_MLP_BIAS),
    "jais2": Recipe(bias=_BIAS, mlp_bias=("mlp_bias", True), gated=False, norm_bias=True),
    "ministral": Recipe(bias=False, windows="all", defaults={"sliding_window": 4096}),
    "ministral3": Recipe(
        bias=False,
        windows="all",
        defaults={
            "head_dim": 128,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1_000_000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16_384,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                GROWTH: 0.1,
            },
        },
    ),
    "nanochat": Recipe(gated=False, norms=0, final_norm=False),
    "nemotron": Recipe(mlp_bias=_MLP_BIAS, gated=False, norm_bias=True, rotary_share=0.5),
    "olmo": Recipe(norms=0, final_norm=False),
    "olmo2": Recipe(head_norm="qk-norm-wide", windows="none"),
    "olmo3": Recipe(
        head_norm="qk-norm-wide",
        period=4,
        # Only layers with full attention have scaled positions.
        rotary_base=500_000.0,
        local_base=("rope_theta", 500_000.0),
        defaults={"sliding_window": 4096},
    ),
    "seed_oss": Recipe(
        bias=_BIAS,
        out_bias=("attention_out_bias", False),
        windows="none",
        mlp_bias=_MLP_BIAS,
        defaults={"head_dim": 128},
    ),
    "smollm3": Recipe(mlp_bias=_MLP_BIAS, tied=True, rotary_base=2_000_000.0, skips_rotation=True),
    "stablelm": Recipe(
        bias=("use_qkv_bias", False),
        out_bias=False,
        head_norm="qk-norm-wide",
        is_normed=("qk_layernorm", False),
        windows="none",
        parallel=("use_parallel_residual", False),
        norm_bias=True,
        rotary_share=0.25,
        ignored=("head_dim",),
    ),
    "starcoder2": Recipe(
        bias=("use_bias", True),
        windows="all",
        mlp_bias=("use_bias", True),
        gated=False,
        norm_bias=True,
        tied=True,
    ),
    "vaultgemma": Recipe(needs_types=True, tied=True, defaults={"head_dim": 256}),
    "gpt_neox": Recipe(
        bias=_BIAS,
        windows="none",
        mlp_bias=True,
        gated=False,
        norm_bias=True,
        rotary_share=0.25,
        ignored=("num_key_value_heads", "head_dim"),
    ),
    "gemma": Recipe(
        windows="none",
        tied=True,
        required=_CAUSAL,
        defaults={"num_key_value_heads": 16, "head_dim": 256},
    ),
    "gemma2": Recipe(
        period=2,
        norms=4,
        tied=True,
        required=_CAUSAL,
        score_cap="attn_logit_softcapping",
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
        },
    ),
    **dict.fromkeys(
        ("gemma3_text", "gemma3"),
        Recipe(
            head_norm="qk-norm",
            period=6,
            norms=4,
            tied=True,
            rotary_base=1_000_000.0,
            local_base=("rope_local_base_freq", 10_000.0),
            required=_CAUSAL,
            defaults={
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "sliding_window": 4096,
                "vocab_size": 262_208,
            },
        ),
    ),
    # Mixtures of experts.
    "mixtral": Recipe(
        bias=False,
        windows="all",
        routed=_WIDE_EXPERTS,
        rotary_base=1_000_000.0,
        defaults={"num_key_value_heads": 8},
    ),
    "qwen3_moe": Recipe(
        head_norm="qk-norm",
        windows="all",
        routed=Routed(),
        defaults={"num_key_value_heads": 4, **_SWITCHED},
    ),
    "qwen3_vl_moe_text": Recipe(
        head_norm="qk-norm", windows="none", routed=Routed(), defaults={"num_key_value_heads": 16}
    ),
    "afmoe": Recipe(
        head_norm="qk-norm",
        gate="channel",
        period=4,
        norms=4,
        routed=Routed(shared="count", corrected=True),
    ),
    "aria_text": Recipe(
        mlp_bias=_MLP_BIAS, routed=Routed(width=WIDE, shared="count", shared_count=2)
    ),
    "cohere2_moe": Recipe(period=4, norms=1, routed=Routed(width=WIDE, shared="count"), tied=True),
    "dots1": Recipe(head_norm="qk-norm", routed=Routed(shared="count")),
    "ernie4_5_moe": Recipe(
        bias=_USE_BIAS,
        mlp_bias=_USE_BIAS,
        routed=Routed(shared="count", shared_count=2, corrected=True),
        tied=True,
        head_bias=_USE_BIAS,
    ),
    "exaone_moe": Recipe(bias=False, head_norm="qk-norm", period=4, routed=_COUNTED),
    "flex_olmo": Recipe(head_norm="qk-norm-wide", windows="none", routed=_WIDE_EXPERTS),
    "flint": Recipe(
        head_norm="qk-norm", per_head=1, needs_types=True, routed=Routed(shared="width")
    ),
    "glm4_moe": Recipe(
        out_bias=False,
        head_norm="qk-norm",
        is_normed=("use_qk_norm", False),
        routed=_COUNTED,
        rotary_share=0.5,
    ),
    "gpt_oss": Recipe(bias=_BIAS, per_head=1, period=2, routed=Routed(width=WIDE, bias=True)),
    "granitemoe": Recipe(routed=_WIDE_EXPERTS),
    "granitemoeshared": Recipe(routed=_WIDE_SHARED),
    "granitemoe_swa": Recipe(per_head=1, needs_types=True, routed=_WIDE_SHARED),
    "hunyuan_v1_moe": Recipe(head_norm="qk-norm", routed=Routed(width=WIDE, shared="one")),
    "hy_v3": Recipe(head_norm="qk-norm", mlp_bias=_MLP_BIAS, routed=_COUNTED),
    "kolibri1": Recipe(
        bias=False, head_norm="qk-norm", needs_types=True, norms=4, routed=Routed(shared="width")
    ),
    "laguna": Recipe(
        head_norm="qk-norm",
        gate="head",
        routed=Routed(shared="width", corrected=True),
        required={"gating": (True, "per-head")},
    ),
    "llama4_text": Recipe(
        others=CHUNKED,
        needs_types=True,
        width="intermediate_size_mlp",
        routed=Routed(width=WIDE, shared="one"),
    ),
    "mellum": Recipe(head_norm="qk-norm", routed=Routed()),
    "minimax_m2": Recipe(bias=False, head_norm="qk-norm-wide", routed=_WIDE_EXPERTS),
    "olmoe": Recipe(head_norm="qk-norm-wide", routed=_WIDE_EXPERTS),
    "phimoe": Recipe(
        windows="all", norm_bias=True, routed=_WIDE_EXPERTS, head_bias=("lm_head_bias", False)
    ),
    "qwen2_moe": Recipe(bias=("qkv_bias", True), out_bias=False, routed=_GATED_SHARING),
    "solar_open": Recipe(out_bias=False, routed=_COUNTED),
    # Layers with a state, between layers of attention.
    "bailing_hybrid": Recipe(
        latent=True,
        gate="head",
        period=6,
        others="linear_attention",
        recurrent=_KIMI_DELTA,
        routed=_COUNTED,
        tied=None,
        defaults={"first_k_dense_replace": 2},
    ),
    "bamba": Recipe(others="mamba", recurrent=_MAMBA2, mlp_bias=_MLP_BIAS, rotary_share=0.5),
    "granitemoehybrid": Recipe(
        needs_types=True, recurrent=_MAMBA2, width="shared_intermediate_size", routed=_WIDE_SHARED
    ),
    "jamba": Recipe(
        bias=False, others="mamba", recurrent={"mamba": recurrent.read_mamba}, routed=_WIDE_EXPERTS
    ),
    "kimi_linear": Recipe(
        latent=True, needs_types=True, recurrent=_KIMI_DELTA, routed=_COUNTED, tied=None
    ),
    "lfm2": Recipe(
        bias=False,
        head_norm="qk-norm",
        others="conv",
        recurrent=_CONVOLUTION,
        tied=True,
        defaults={"block_auto_adjust_ff_dim": True},
    ),
    "lfm2_moe": Recipe(
        bias=False,
        head_norm="qk-norm",
        others="conv",
        recurrent=_CONVOLUTION,
        routed=Routed(),
        tied=True,
    ),
    "lfm3": Recipe(
        head_norm="qk-norm",
        gate="head",
        is_gated=("use_attention_gate", True),
        others="conv",
        recurrent=_CONVOLUTION,
        post_norms=("use_sandwich_norm", True),
        tied=True,
    ),
    "minimax": Recipe(
        bias=False,
        needs_types=True,
        recurrent={"linear_attention": recurrent.read_lightning},
        routed=_WIDE_EXPERTS,
    ),
    "olmo_hybrid": Recipe(head_norm="qk-norm-wide", needs_types=True, recurrent=_GATED_DELTA),
    **{
        family: Recipe(
            head_norm="qk-norm",
            gate="query",
            period=4,
            others="linear_attention",
            recurrent=_GATED_DELTA,
            routed=routed,
            rotary_share=0.25,
        )
        for family, routed in (
            ("qwen3_next", _GATED_SHARING),
            ("qwen3_5_text", None),
            ("qwen3_5_moe_text", _GATED_SHARING),
        )
    },
    # Keys and values made from one latent.
    "axk1": Recipe(latent=True, routed=Routed(shared="count", shared_count=1, norms=1)),
    "deepseek_v32": Recipe(latent=True, windows="none", routed=_COUNTED),
    "glm_moe_dsa": Recipe(latent=True, windows="none", routed=_COUNTED),
    "glm4_moe_lite": Recipe(latent=True, routed=_COUNTED),
    "minicpm3": Recipe(latent=True, mlp_bias=_MLP_BIAS, tied=True),
    "youtu": Recipe(latent=True, tied=True),
}
"""The families of this file, by ``model_type``."""

READERS: Mapping[str, Reader] = {name: partial(read, recipe) for name, recipe in RECIPES.items()}
