"""Layers with a state, as configurations describe them: convolutions and delta rules.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Callable

from qkvary.arch.blocks import RecurrentLayer
from qkvary.arch.families.fields import Fields
from qkvary.arch.parts import Linear, Norm

ReadRecurrent = Callable[[Fields], RecurrentLayer]
"""Makes a layer with a state from a configuration."""


def read_short_convolution(fields: Fields) -> RecurrentLayer:
    """Return the gated short convolution of LFM2."""
    d_model, taps = fields.size("hidden_size"), fields.size("conv_L_cache")
    bias = fields.flag("conv_bias", default=False)
    return RecurrentLayer(
        kind="short convolution",
        d_model=d_model,
        recent=d_model * taps,
        taps=taps,
        linears=(Linear(d_model, 3 * d_model, bias=bias), Linear(d_model, d_model, bias=bias)),
        entries=d_model * (taps + bias),
        products=d_model * taps,
    )


def read_gated_delta(fields: Fields) -> RecurrentLayer:
    """Return the gated delta rule of Qwen 3.5, Qwen3-Next and OLMo Hybrid."""
    d_model, taps = fields.size("hidden_size"), fields.size("linear_conv_kernel_dim")
    key_heads, value_heads = (fields.size(f"linear_num_{one}_heads") for one in ("key", "value"))
    key_dim, value_dim = (fields.size(f"linear_{one}_head_dim") for one in ("key", "value"))
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * keys + values
    state = value_heads * key_dim * value_dim
    return RecurrentLayer(
        kind="gated delta rule",
        d_model=d_model,
        sum_bits=_sum_bits(fields, "mamba_ssm_dtype"),
        sums=state,
        recent=mixed * taps,
        taps=taps,
        linears=(
            Linear(d_model, mixed + values),
            Linear(d_model, 2 * value_heads),
            Linear(values, d_model),
        ),
        norms=(Norm(value_dim),),
        # The taps, and one decay and one step size per head.
        entries=mixed * taps + 2 * value_heads,
        # Three products with the state: with the key, to add the difference, and with the query.
        products=mixed * taps + 3 * state,
    )


def read_mamba(fields: Fields) -> RecurrentLayer:
    """Return the selective state-space layer of Mamba and Jamba.

    Source: Gu and Dao 2023, "Mamba".
    """
    d_model = fields.size("hidden_size")
    is_jamba = fields.has("mamba_d_state")
    inner = fields.size("mamba_expand", "expand", default=2) * d_model
    if not is_jamba:
        inner = fields.size("intermediate_size", default=inner)
    state = fields.size("mamba_d_state", "state_size")
    taps = fields.size("mamba_d_conv", "conv_kernel")
    rank = fields.size("mamba_dt_rank", "time_step_rank", default=-(-d_model // 16))
    bias = fields.flag("mamba_proj_bias", "use_bias", default=False)
    conv_bias = fields.flag("mamba_conv_bias", "use_conv_bias", default=True)
    norms = tuple(Norm(width) for width in (rank, state, state)) if is_jamba else ()
    return RecurrentLayer(
        kind="Mamba",
        d_model=d_model,
        sums=inner * state,
        recent=inner * taps,
        taps=taps,
        linears=(
            Linear(d_model, 2 * inner, bias=bias),
            Linear(inner, rank + 2 * state),
            Linear(rank, inner, bias=True),
            Linear(inner, d_model, bias=bias),
        ),
        norms=norms,
        entries=inner * (state + 1 + taps + conv_bias),
        products=inner * (taps + 2 * state),
    )


def read_mamba2(fields: Fields) -> RecurrentLayer:
    """Return the Mamba 2 layer, which Bamba, Granite 4, Falcon H1 and Nemotron H also use.

    Source: Dao and Gu 2024, "Transformers are SSMs".
    """
    d_model = fields.size("hidden_size")
    heads = fields.size("mamba_n_heads", "mamba_num_heads", "num_heads")
    size = _mamba2_head_dim(fields, d_model, heads)
    groups = fields.size("mamba_n_groups", "n_groups", default=1)
    state = fields.size("mamba_d_state", "ssm_state_size", "state_size")
    taps = fields.size("mamba_d_conv", "conv_kernel")
    bias = fields.flag("use_bias", "mamba_proj_bias", default=False)
    out_bias = fields.flag("projectors_bias", default=bias)
    conv_bias = fields.flag("mamba_conv_bias", "use_conv_bias", default=True)
    inner = heads * size
    mixed = inner + 2 * groups * state
    is_normed = fields.flag("mamba_rms_norm", default=True)
    return RecurrentLayer(
        kind="Mamba 2",
        d_model=d_model,
        sum_bits=_sum_bits(fields, "mamba_ssm_cache_dtype"),
        sums=inner * state,
        recent=mixed * taps,
        taps=taps,
        linears=(
            Linear(d_model, inner + mixed + heads, bias=bias),
            Linear(inner, d_model, bias=out_bias),
        ),
        norms=(Norm(inner),) if is_normed else (),
        # The taps, and one decay, one step size and one skip per head.
        entries=mixed * (taps + conv_bias) + 3 * heads,
        products=mixed * taps + 2 * inner * state,
    )


def _mamba2_head_dim(fields: Fields, d_model: int, heads: int) -> int:
    """Return the number of channels per head, as stated or derived from the inner width."""
    total = fields.optional_size("mamba_d_ssm")
    if total is None:
        total = fields.size("mamba_expand", "expand", default=2) * d_model
    given = fields.content.get("mamba_d_head", fields.content.get("mamba_head_dim"))
    if given is None:
        given = fields.content.get("head_dim") if fields.has("num_heads") else None
    if given in (None, "auto"):
        return total // heads
    return fields.size("mamba_d_head", "mamba_head_dim", "head_dim")


def read_lightning(fields: Fields) -> RecurrentLayer:
    """Return MiniMax's linear attention, which has a gate and a fixed decay.

    Source: Qin et al. 2024, "Lightning Attention-2".
    """
    d_model, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    size = fields.size("head_dim", default=d_model // heads)
    inner = heads * size
    return RecurrentLayer(
        kind="lightning attention",
        d_model=d_model,
        sums=inner * size,
        linears=(Linear(d_model, 3 * inner), Linear(d_model, inner), Linear(inner, d_model)),
        norms=(Norm(inner),),
        products=2 * inner * size,
    )


def read_kimi_delta(fields: Fields) -> RecurrentLayer:
    """Return the delta rule of Kimi Linear and Ling, which has a decay for each channel.

    Source: Kimi Team 2025, "Kimi Linear".
    """
    own = fields.section("linear_attn_config") or fields
    d_model = fields.size("hidden_size")
    heads = own.size("linear_num_heads", "num_heads", "num_attention_heads")
    size = own.size("linear_head_dim", "head_dim")
    taps = own.size("linear_conv_kernel_dim", "short_conv_kernel_size")
    inner = heads * size
    # Decays and gates are made by two narrow matrices, or by a full one.
    maps = (Linear(d_model, size), Linear(size, inner))
    if fields.family == "bailing_hybrid":
        maps = (Linear(d_model, inner),)
    return RecurrentLayer(
        kind="Kimi delta rule",
        d_model=d_model,
        sum_bits=32,
        sums=inner * size,
        recent=3 * inner * taps,
        taps=taps,
        linears=(
            *(Linear(d_model, inner),) * 3,
            *maps,
            *maps,
            Linear(d_model, heads),
            Linear(inner, d_model),
        ),
        norms=(Norm(size),),
        entries=3 * inner * taps + heads + inner,
        products=3 * inner * taps + 3 * inner * size,
    )


def read_gated_recurrence(fields: Fields) -> RecurrentLayer:
    """Return the gated linear recurrence of RecurrentGemma.

    Source: De et al. 2024, "Griffin".
    """
    d_model, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    width, taps = fields.size("lru_width", default=d_model), fields.size("conv1d_width", default=4)
    into = Linear(d_model, width, bias=True)
    gate = Linear(width, width, groups=heads, bias=True)
    return RecurrentLayer(
        kind="gated linear recurrence",
        d_model=d_model,
        sum_bits=32,
        sums=width,
        # The new token needs no room, as in transformers.
        recent=width * (taps - 1),
        linears=(into, into, gate, gate, Linear(width, d_model, bias=True)),
        # The taps and their bias, and a decay.
        entries=width * (taps + 2),
        products=width * taps,
    )


def read_time_mixing(fields: Fields) -> RecurrentLayer:
    """Return the time mixing of RWKV 4, with the shift of its channel mixing.

    Source: Peng et al. 2023, "RWKV".
    """
    d_model = fields.size("hidden_size")
    inner = fields.size("attention_hidden_size", default=d_model)
    into = Linear(d_model, inner)
    return RecurrentLayer(
        kind="RWKV",
        d_model=d_model,
        sum_bits=32,
        # Numerator, denominator and largest exponent.
        sums=3 * inner,
        recent=2 * d_model,
        linears=(into, into, into, Linear(inner, d_model)),
        # Decay and bonus, and the mixing factors of both shifts.
        entries=2 * inner + 5 * d_model,
    )


def read_matrix_memory(fields: Fields) -> RecurrentLayer:
    """Return the matrix memory of xLSTM.

    Source: Beck et al. 2024, "xLSTM".
    """
    d_model = fields.size("hidden_size", "embedding_dim")
    heads = fields.size("num_heads", default=8)
    bias = fields.flag("use_bias", default=False)
    keys = round_up(d_model * fields.number("qk_dim_factor", default=0.5), 64)
    values = round_up(d_model * fields.number("v_dim_factor", default=1.0), 64)
    state = keys * values // heads
    gate = Linear(d_model, heads, bias=True)
    return RecurrentLayer(
        kind="xLSTM",
        d_model=d_model,
        sum_bits=32,
        # Per head: a matrix, its normaliser and its largest exponent.
        sums=state + keys + heads,
        linears=(
            *(Linear(d_model, keys, bias=bias),) * 2,
            *(Linear(d_model, values, bias=bias),) * 2,
            gate,
            gate,
            Linear(values, d_model, bias=bias),
        ),
        norms=(Norm(values, bias=bias),),
        products=2 * (state + keys),
    )


def round_up(size: float, multiple: int) -> int:
    """Return the size rounded up to a multiple, as xLSTM rounds its widths."""
    return int(-(-size // multiple) * multiple)


def _sum_bits(fields: Fields, name: str) -> int | None:
    """Return the bits of the type that sums a state, if known; Nemotron H's default is 32."""
    default = "float32" if fields.family == "nemotron_h" else ""
    return {"float32": 32, "float16": 16, "bfloat16": 16}.get(fields.text(name, default=default))
