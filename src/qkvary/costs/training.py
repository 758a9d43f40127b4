"""Training plans: memory of weights, gradients, optimizer and activations, and the speed.

Activations are the tensors that autograd saves in a block with a fused softmax core and no dropout.
Each tensor counts once. Three things are not counted: copies of weights, the statistics of norms
(one or two numbers per token), and those of the softmax (one number per token and head). A
nonlinearity is assumed to keep both input and output, although ReLU needs only one. The numbers for
compressed attention and for sorting tokens by expert are rough estimates. A backward pass takes
twice the MACs of a forward pass.
"""

from dataclasses import dataclass
from typing import Literal

from qkvary.arch.attention import LINEAR_CHUNK, AttentionConfig
from qkvary.arch.blocks import (
    CompressedAttention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    ProjectedAttention,
    RecurrentLayer,
)
from qkvary.arch.models import Model, map_layers
from qkvary.arch.sharing import IDENTITY
from qkvary.costs.devices import Device
from qkvary.costs.macs import TRAINING_FACTOR, forward_macs
from qkvary.costs.parameters import model_parameters

Precision = Literal["mixed", "fp32"]
ACTIVATION_BYTES: dict[Precision, int] = {"mixed": 2, "fp32": 4}
STATE_BYTES = 16
"""Bytes per parameter. ``mixed``: 16-bit weights and gradients, 32-bit master weights and two AdamW
moments (2 + 2 + 4 + 4 + 4). ``fp32``: weights, gradients and two moments (4 each)."""
LOGIT_BYTES = 8
"""Bytes per logit: a 32-bit logit and its gradient, for a head that is not fused with the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """The plan for training one model on one device."""

    state_bytes: int
    """Bytes of weights, gradients and optimizer state."""
    sequence_bytes: int
    """Bytes of one sequence's activations, logits included."""
    checkpointing: bool
    """Whether activations inside blocks are recomputed instead of stored."""
    free_bytes: int
    """Memory of the device minus the reserve and the state; negative if the state does not fit."""
    largest_batch: int
    """Maximum number of sequences that fit into the free memory; 0 if a single one does not."""
    macs_per_token: float
    """MACs per token of forward and backward pass, with recomputation and without masked pairs."""
    tokens_per_second: float | None
    """Tokens per second, if the device's rate is known."""


def plan_training(
    model: Model,
    *,
    device: Device,
    tokens: int,
    precision: Precision = "mixed",
    checkpointing: bool = False,
    reserve: float = 0.1,
    utilization: float = 0.4,
    encoder_tokens: int | None = None,
) -> TrainingPlan:
    """Plan the training of one model on one device.

    Args:
        model: The model.
        device: The device.
        tokens: Tokens of a sequence; with an encoder, only the decoder's tokens.
        precision: The number formats of weights, gradients and activations.
        checkpointing: Whether only the input of each block is kept, and the block recomputed.
        reserve: The share of memory that is left for fragmentation and buffers.
        utilization: The share of the device's matrix rate that training reaches.
        encoder_tokens: Number of encoder tokens, if the model does not fix it; by default the
            number of decoder tokens.

    Raises:
        ValueError: for a reserve outside [0, 1) or a utilisation outside (0, 1].
    """
    if not 0 <= reserve < 1 or not 0 < utilization <= 1:
        raise ValueError(
            f"expected a reserve in [0, 1) and a utilization in (0, 1], got {reserve} and "
            f"{utilization}"
        )
    state = model_parameters(model).total * STATE_BYTES
    sequence = activation_bytes(
        model,
        tokens=tokens,
        precision=precision,
        checkpointing=checkpointing,
        encoder_tokens=encoder_tokens,
    )
    free = int(device.memory_bytes * (1 - reserve)) - state
    per_token = training_macs_per_token(model, tokens=tokens, encoder_tokens=encoder_tokens)
    per_token += per_token / TRAINING_FACTOR if checkpointing else 0.0
    rate = device.flops_per_second_16_bit
    return TrainingPlan(
        state_bytes=state,
        sequence_bytes=sequence,
        checkpointing=checkpointing,
        free_bytes=free,
        largest_batch=max(0, free // sequence),
        macs_per_token=per_token,
        tokens_per_second=None if rate is None else utilization * rate / (2 * per_token),
    )


def training_macs_per_token(
    model: Model, *, tokens: int, encoder_tokens: int | None = None
) -> float:
    """Return the MACs of a forward and a backward pass over one sequence, per token.

    Masked pairs and recomputed blocks are not counted. The arguments are those of
    :func:`plan_training`.
    """
    forward = forward_macs(model, tokens=tokens, encoder_tokens=encoder_tokens)
    return TRAINING_FACTOR * forward.total / tokens


def activation_bytes(
    model: Model,
    *,
    tokens: int,
    precision: Precision = "mixed",
    checkpointing: bool = False,
    encoder_tokens: int | None = None,
) -> int:
    """Return the bytes kept for the backward pass of one sequence, including its logits.

    The arguments are those of :func:`plan_training`.
    """
    seen = model.count_encoder_tokens(encoder_tokens, tokens)
    d_model = model.d_model

    def count(layer: Layer) -> int:
        numbers = tokens * activation_numbers(layer, d_model)
        if layer.cross is not None:
            config = layer.cross.config
            cached = config.variant.cached
            numbers += seen * sum(config.width(one) for one in cached if one != IDENTITY)
        return numbers

    blocks = map_layers(model.layers, count)
    inputs = tokens * d_model * len(model.layers)
    largest = max(blocks) - tokens * d_model
    # The last norm and the head each store their input.
    outside = 2 * tokens * d_model
    if model.encoder is not None:
        encoding = map_layers(
            model.encoder.layers, lambda layer: seen * activation_numbers(layer, d_model)
        )
        blocks += encoding
        inputs += seen * d_model * len(encoding)
        largest = max(largest, *(block - seen * d_model for block in encoding))
        outside += 2 * seen * d_model
    kept = outside + (inputs + largest if checkpointing else sum(blocks))
    return kept * ACTIVATION_BYTES[precision] + tokens * model.vocabulary * LOGIT_BYTES


def activation_numbers(layer: Layer, d_model: int) -> int:
    """Return the numbers per token that one block keeps for its backward pass."""
    sublayers = 2 if layer.cross is None else 3
    # Every norm stores its input; a sublayer after a norm stores the norm's output.
    norms = len(layer.norms) or sublayers
    numbers = (norms + min(norms, sublayers)) * d_model
    if isinstance(layer.attention, ProjectedAttention):
        numbers += _projected_numbers(layer.attention)
    else:
        numbers += _published_numbers(layer.attention)
    if layer.cross is not None:
        config = layer.cross.config
        numbers += 2 * config.num_heads * config.size_per_head
    return numbers + sum(_feed_forward_numbers(part) for part in layer.feed_forward)


def _published_numbers(attention: LatentAttention | RecurrentLayer | CompressedAttention) -> int:
    if isinstance(attention, LatentAttention):
        read = 2 * attention.key_dim + attention.value_dim
        # The norms of the latents store their inputs, and the projections after them theirs.
        latents = 2 * ((attention.q_rank or 0) + attention.kv_rank)
        return latents + attention.num_heads * (read + attention.value_dim)
    if isinstance(attention, RecurrentLayer):
        return sum(linear.outputs for linear in attention.linears[:-1])
    mixed = attention.num_heads * attention.head_dim
    summaries = sum(2 * part.projected_width for part in attention.compressors)
    return 2 * mixed + attention.q_rank + attention.head_dim + summaries


def _projected_numbers(attention: ProjectedAttention) -> int:
    """Return the numbers per token that queries, keys, values and weighted sums take.

    Each tensor counts once. A projection counts as two tensors if it is normalised, or if it is
    used both with and without rotation.
    """
    config = attention.config
    variant, sharing = config.variant, config.variant.sharing
    queries = config.num_heads * config.size_per_head
    is_turned, value_rope = variant.positions == "rotary", config.value_rope
    made = 0 if variant.latent is None else config.width(sharing.key)
    before = config.width(sharing.key) if variant.kv_norm else 0
    if variant.decoupled is not None:
        # Query and key are copied next to their rotated parts. The value is padded with as many
        # zeros, which the weighted sums keep until they are cut off.
        wide = config.num_heads + config.num_kv_heads
        return 2 * wide * config.compared_channels + queries + made + before
    tensors: dict[tuple[str, bool], int] = {
        (sharing.key, is_turned): config.width(sharing.key),
        (sharing.value, value_rope != "none"): config.width(sharing.value),
        (sharing.query if variant.query_form == "plain" else "query", is_turned): queries,
    }
    if variant.query_form in ("map", "residual-gelu"):
        tensors[sharing.query, False] = config.width(sharing.query)
    # The layer input is stored anyway, because the projections read it.
    tensors.pop((IDENTITY, False), None)
    if made:
        tensors |= {("key", False): config.kv_width, ("value", False): config.kv_width}
    inner = sum(config.rank(source) or 0 for source in variant.projections)
    normed = {sharing.query: queries, sharing.key: config.width(sharing.key)}
    before += sum(normed.values()) if attention.norms or variant.head_norm != "none" else 0
    turned_back = queries if value_rope == "counter" else 0
    kept = sum(tensors.values()) + inner + before + queries + turned_back
    return kept + (_summed_numbers(config) if variant.keeps_state else 0)


def _summed_numbers(config: AttentionConfig) -> int:
    """Return the numbers per token that linear attention saves in addition to query, key and value.

    These are the features and values in chunks, the scores of each chunk, the state before each
    chunk, and the sums before division. The sequence is assumed to be long. The features are
    assumed to be 1 + elu; other features save less.
    """
    variant, queries = config.variant, config.num_heads * config.size_per_head
    pairs, state = config.num_heads * LINEAR_CHUNK, -(-config.state_numbers // LINEAR_CHUNK)
    numbers = queries + 2 * config.kv_width + pairs + state
    if variant.is_normalised:
        numbers += queries + 2 * config.num_heads
    if variant.decay != "none":
        numbers += queries + config.kv_width
    return numbers + (pairs + state if variant.decay == "learned" else 0)


def _feed_forward_numbers(part: FeedForward | Experts) -> int:
    if isinstance(part, FeedForward):
        # Input and output of the nonlinearity; with a gate, also its other factor and the product.
        return (4 if part.gated else 2) * part.d_ff
    routed = part.active * _feed_forward_numbers(part.expert)
    return routed + (0 if part.shared is None else _feed_forward_numbers(part.shared))
