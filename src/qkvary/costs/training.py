"""Training plans: memory of weights, gradients, optimizer and activations, and steps at a rate.

Activations are what automatic differentiation keeps of a pre-norm block with a fused softmax core
and no dropout. A backward pass costs twice the products of a forward pass.
"""

from dataclasses import dataclass
from typing import Literal

from qkvary.arch.blocks import (
    AttentionLayer,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    ProjectedAttention,
)
from qkvary.arch.models import Model, map_layers
from qkvary.costs.devices import Device
from qkvary.costs.macs import TRAINING_FACTOR, forward_macs
from qkvary.costs.parameters import model_parameters

Precision = Literal["mixed", "fp32"]
ACTIVATION_BYTES: dict[Precision, int] = {"mixed": 2, "fp32": 4}
STATE_BYTES: dict[Precision, int] = {"mixed": 16, "fp32": 16}
"""Per parameter. ``mixed``: 16-bit weights and gradients, 32-bit master weights and two AdamW
moments (2 + 2 + 4 + 4 + 4). ``fp32``: weights, gradients and two moments (4 each)."""
LOGIT_BYTES = 8
"""Of one logit: its value and its gradient in 32 bits, where head and loss are not fused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How one model trains on one device."""

    tokens: int
    """Tokens of a sequence."""
    state_bytes: int
    """Weights, gradients and optimizer."""
    sequence_bytes: int
    """Activations of one sequence, its logits included."""
    largest_batch: int
    """Sequences that fit beside the state; 0 where even one does not."""
    macs_per_token: float
    """Forward and backward, visible pairs only."""
    tokens_per_second: float | None
    """At the utilisation that was asked for."""


def plan_training(
    model: Model,
    *,
    device: Device,
    tokens: int,
    precision: Precision = "mixed",
    checkpointing: bool = False,
    reserve: float = 0.1,
    utilization: float = 0.4,
) -> TrainingPlan:
    """Plan the training of one model on one device.

    Args:
        model: Any model.
        device: The device.
        tokens: Tokens of a sequence.
        precision: What weights, gradients and activations are kept in.
        checkpointing: Whether only the input of each block is kept, and the block computed again.
        reserve: The share of memory that is left to fragments and buffers.
        utilization: The share of the device's matrix rate that training reaches.

    Raises:
        ValueError: for a reserve outside [0, 1) or a utilisation outside (0, 1].
    """
    if not 0 <= reserve < 1 or not 0 < utilization <= 1:
        raise ValueError(
            f"expected a reserve in [0, 1) and a utilization in (0, 1], got {reserve} and "
            f"{utilization}"
        )
    state = model_parameters(model).total * STATE_BYTES[precision]
    sequence = activation_bytes(
        model, tokens=tokens, precision=precision, checkpointing=checkpointing
    )
    free = int(device.memory_bytes * (1 - reserve)) - state
    forward = forward_macs(model, tokens=tokens, pairs="visible").total / tokens
    again = 1 if checkpointing else 0
    per_token = forward * (TRAINING_FACTOR + again)
    rate = device.flops_per_second_16_bit
    return TrainingPlan(
        tokens=tokens,
        state_bytes=state,
        sequence_bytes=sequence,
        largest_batch=max(0, free // sequence),
        macs_per_token=per_token,
        tokens_per_second=None if rate is None else utilization * rate / (2 * per_token),
    )


def activation_bytes(
    model: Model, *, tokens: int, precision: Precision = "mixed", checkpointing: bool = False
) -> int:
    """Bytes that one sequence keeps for the backward pass, its logits included."""
    each = ACTIVATION_BYTES[precision]
    layers = map_layers(model.layers, lambda layer: activation_numbers(layer, model.d_model))
    kept = len(layers) * model.d_model + max(layers) if checkpointing else sum(layers)
    # The last norm keeps its input and the head its own.
    kept += 2 * model.d_model
    return tokens * (kept * each + model.vocabulary * LOGIT_BYTES)


def activation_numbers(layer: Layer, d_model: int) -> int:
    """Numbers that one block keeps of a token: what each operation needs in its backward pass."""
    numbers = 2 * d_model + _attention_numbers(layer.attention)
    if layer.cross is not None:
        numbers += 2 * d_model + _attention_numbers(layer.cross)
    # A norm keeps its input; the projections after it keep its output.
    numbers += 2 * d_model
    return numbers + sum(_feed_forward_numbers(part) for part in layer.feed_forward)


def _attention_numbers(attention: AttentionLayer) -> int:
    """Queries, each stored source once, and the mixed values, which the output projection reads."""
    if isinstance(attention, ProjectedAttention):
        config = attention.config
        mixed = config.num_heads * config.size_per_head
        # The layer input is kept already, as what the projections read.
        return mixed + sum(config.width(source) for source in config.variant.projections)
    if isinstance(attention, LatentAttention):
        heads = attention.num_heads
        expanded = heads * (2 * attention.key_dim + attention.value_dim)
        return (
            expanded
            + (attention.q_rank or 0)
            + attention.stored_width
            + heads * (attention.value_dim)
        )
    mixed = attention.num_heads * attention.head_dim
    summaries = sum(2 * part.projected_width for part in attention.compressors)
    return 2 * mixed + attention.q_rank + attention.head_dim + summaries


def _feed_forward_numbers(part: FeedForward | Experts) -> int:
    """Before and after the nonlinearity; with a gate also the other branch and its product."""
    if isinstance(part, FeedForward):
        return (4 if part.gated else 2) * part.d_ff
    routed = part.active * _feed_forward_numbers(part.expert)
    return routed + (0 if part.shared is None else _feed_forward_numbers(part.shared))
