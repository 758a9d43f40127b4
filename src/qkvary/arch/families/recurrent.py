"""Layers with a state, as configurations describe them: convolutions and delta rules.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Callable

from qkvary.arch.blocks import RecurrentLayer
from qkvary.arch.families.fields import Fields
from qkvary.arch.parts import Linear, Norm

ReadRecurrent = Callable[[Fields], RecurrentLayer]
"""Makes a layer of a configuration."""


def read_short_convolution(fields: Fields) -> RecurrentLayer:
    """Return the gated short convolution of LFM2.

    Raises:
        ValueError: for a field that is missing or makes no sense.
    """
    d_model, taps = fields.size("hidden_size"), fields.size("conv_L_cache")
    bias = fields.flag("conv_bias", default=False)
    return RecurrentLayer(
        kind="short convolution",
        d_model=d_model,
        recent=d_model * taps,
        linears=(
            Linear(inputs=d_model, outputs=3 * d_model, bias=bias),
            Linear(inputs=d_model, outputs=d_model, bias=bias),
        ),
        entries=d_model * (taps + bias),
        products=d_model * taps,
    )


def read_gated_delta(fields: Fields) -> RecurrentLayer:
    """Return the gated delta rule of Qwen 3.5, Qwen3-Next and OLMo Hybrid.

    Raises:
        ValueError: for a field that is missing or makes no sense.
    """
    d_model, taps = fields.size("hidden_size"), fields.size("linear_conv_kernel_dim")
    key_heads, value_heads = (fields.size(f"linear_num_{one}_heads") for one in ("key", "value"))
    key_dim, value_dim = (fields.size(f"linear_{one}_head_dim") for one in ("key", "value"))
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * keys + values
    state = value_heads * key_dim * value_dim
    return RecurrentLayer(
        kind="gated delta rule",
        d_model=d_model,
        sums=state,
        recent=mixed * taps,
        linears=(
            Linear(inputs=d_model, outputs=mixed + values),
            Linear(inputs=d_model, outputs=2 * value_heads),
            Linear(inputs=values, outputs=d_model),
        ),
        norms=(Norm(width=value_dim),),
        # The taps, a decay and a step for each head.
        entries=mixed * taps + 2 * value_heads,
        # The state answers the key, takes the difference in and answers the query.
        products=mixed * taps + 3 * state,
    )
