"""What a training plan says is kept for the backward pass is what torch keeps.

Counted are the storages that autograd saves and that grow with the batch, each once: weights, and
copies of weights, do not grow. Left out by the plan, and added here one by one: mean and deviation
of each norm, the logarithm of each head's softmax denominator, and the numbers of the tokens.
"""

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkvary.arch.attention import AttentionConfig, PositionConfig, ValueRope
from qkvary.arch.blocks import FeedForward, LatentAttention, Layer, ProjectedAttention
from qkvary.arch.labels import parse_variant
from qkvary.arch.models import as_model
from qkvary.arch.networks import Activation, BlockConfig, LanguageModelConfig
from qkvary.arch.parts import Norm
from qkvary.costs.training import (
    LOGIT_BYTES,
    activation_bytes,
    activation_numbers,
    crossing_numbers,
)
from qkvary.nn.language_model import LanguageModel

D_MODEL, HEADS, HEAD_DIM, D_FF, VOCABULARY, TOKENS = 48, 4, 12, 101, 31, 7
FLOAT = 4
NORM_NUMBERS = 2
TOKEN_NUMBERS = 8 // FLOAT
LABELS = (
    "QKV",
    "Q-K=V",
    "Q=K-V",
    "Q=K=V",
    "Q=V",
    "GQA-2",
    "MQA",
    "Q-GQA-2",
    "Q-MQA",
    "I-K-V",
    "I-K=V",
    "Q-I-V",
    "Q-K-I",
    "I-I-I",
    "Q-K[d/4]-V",
    "QKV@w3",
    "Q-K=V@decoupled-4",
    "Q-GQA-2@decoupled-4",
    "QKV@decoupled-4",
    "Q-K=V@latent-8",
    "Q-GQA-2@latent-8",
)


def kept_bytes(run: Callable[[int], object], batch: int) -> int:
    """Bytes of the storages that autograd saves, each once."""
    found: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # The tensor is held so that no other one gets its address.
        found[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = run(batch)
    assert output is not None
    return sum(size for size, _ in found.values())


def kept_numbers(run: Callable[[int], object]) -> float:
    """Floats of a token, from what two sequences more add."""
    more = kept_bytes(run, 5) - kept_bytes(run, 3)
    assert more % (2 * TOKENS * FLOAT) == 0
    return more // (2 * TOKENS * FLOAT)


def make_config(
    label: str, *, num_layers: int, activation: Activation = "gelu"
) -> LanguageModelConfig:
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=D_MODEL,
            num_heads=HEADS,
            causal=True,
            variant=parse_variant(label),
            kernel="sdpa",
        ),
        block=BlockConfig(d_ff=D_FF, activation=activation),
        num_layers=num_layers,
        vocabulary=VOCABULARY,
        max_tokens=TOKENS,
        positions="none",
    )


def run_network(config: LanguageModelConfig, *, with_loss: bool = False) -> Callable[[int], Tensor]:
    network = LanguageModel(config)

    def run(batch: int) -> Tensor:
        length = config.max_tokens
        tokens = torch.arange(batch * length).view(batch, length) % VOCABULARY
        logits = network(tokens)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten()) if with_loss else logits

    return run


@pytest.mark.parametrize(
    ("label", "activation", "spared"),
    [
        *((label, "gelu", 0) for label in LABELS),
        ("GQA-2", "swiglu", 0),
        # ReLU needs its output only, which the next matrix keeps as well.
        ("GQA-2", "relu", D_FF),
    ],
)
def test_a_block_keeps_what_the_plan_says(label: str, activation: Activation, spared: int) -> None:
    one, two = (make_config(label, num_layers=n, activation=activation) for n in (1, 2))
    found = kept_numbers(run_network(two)) - kept_numbers(run_network(one))
    expected = activation_numbers(as_model(one).layers[0], D_MODEL)
    assert found == expected - spared + 2 * NORM_NUMBERS + HEADS


@pytest.mark.parametrize("label", ["QKV", "Q-K=V", "MQA"])
def test_a_whole_network_with_its_loss(label: str) -> None:
    layers = 3
    config = make_config(label, num_layers=layers)
    found = kept_numbers(run_network(config, with_loss=True))
    planned = activation_bytes(as_model(config), tokens=TOKENS, precision="fp32")
    # The plan has the gradient of the logits too, which comes into being afterwards.
    assert LOGIT_BYTES == 2 * FLOAT
    forward = planned / TOKENS / FLOAT - VOCABULARY
    norms = (2 * layers + 1) * NORM_NUMBERS
    # The tokens are the targets here, and kept once.
    assert found == forward + norms + layers * HEADS + TOKEN_NUMBERS


def test_checkpointing_keeps_the_inputs_of_blocks() -> None:
    layers = 3
    network = LanguageModel(make_config("QKV", num_layers=layers))
    blocks = list(network.stack.blocks)
    for block in blocks:
        inner = block.forward
        block.forward = lambda *given, _inner=inner, **named: checkpoint(  # type: ignore[method-assign]
            _inner, *given, use_reentrant=False, **named
        )

    def run(batch: int) -> Tensor:
        return network(torch.arange(batch * TOKENS).view(batch, TOKENS) % VOCABULARY)

    # The input of the first block is the embedding, which only the block itself keeps.
    found = kept_numbers(run)
    model = as_model(network.config)
    planned = activation_bytes(model, tokens=TOKENS, precision="fp32", checkpointing=True)
    block = activation_numbers(model.layers[0], D_MODEL)
    again = block - D_MODEL
    forward = planned / TOKENS / FLOAT - 2 * VOCABULARY - again
    assert found == forward + NORM_NUMBERS + TOKEN_NUMBERS
    whole = activation_bytes(model, tokens=TOKENS, precision="fp32")
    assert whole - planned == (layers - 1) * again * TOKENS * FLOAT


# ---- blocks that are written out here: rotation, normalised heads, latents, cross attention


def matrix(outputs: int, inputs: int) -> Tensor:
    return torch.randn(outputs, inputs, requires_grad=True)


def gain(width: int) -> Tensor:
    return torch.ones(width, requires_grad=True)


def split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1))


def join(x: Tensor) -> Tensor:
    return x.flatten(2)


def turn(x: Tensor, sign: float = 1.0) -> Tensor:
    """Rotate all channels of every head; the tables are constants."""
    half = x.shape[-1] // 2
    angles = torch.arange(TOKENS)[:, None, None] / 10_000 ** (torch.arange(half) / half)
    cos, sin = angles.cos().repeat(1, 1, 2), sign * angles.sin().repeat(1, 1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def feed_forward(x: Tensor) -> Tensor:
    gate, up, down = matrix(D_FF, D_MODEL), matrix(D_FF, D_MODEL), matrix(D_MODEL, D_FF)
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], gain(x.shape[-1]))


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = True) -> Tensor:
    """Heads follow the tokens: no copy is made for the next matrix."""
    gqa = query.shape[2] != key.shape[2]
    roles = (role.transpose(1, 2) for role in (query, key, value))
    mixed = F.scaled_dot_product_attention(*roles, is_causal=causal, enable_gqa=gqa)
    return mixed.transpose(1, 2)


def written_out(sublayer: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
    """A pre-norm block around what attends, on inputs that something upstream made."""

    def run(batch: int) -> Tensor:
        # The gradient has to reach the input for the input of the norm to be kept.
        x = torch.randn(batch, TOKENS, D_MODEL, requires_grad=True)
        x = x + sublayer(norm(x))
        return x + feed_forward(norm(x))

    return run


def make_layer(attention: ProjectedAttention | LatentAttention) -> Layer:
    return Layer(
        attention=attention,
        feed_forward=(FeedForward(d_model=D_MODEL, d_ff=D_FF, gated=True),),
        norms=(Norm(width=D_MODEL),) * 2,
    )


def make_attention(
    label: str, *, value_rope: ValueRope = "none", norms: int = 0
) -> ProjectedAttention:
    config = AttentionConfig(
        d_model=D_MODEL,
        num_heads=HEADS,
        causal=True,
        variant=parse_variant(label),
        position=PositionConfig(value_rope=value_rope, rotary_fraction=1.0),
    )
    return ProjectedAttention(config=config, norms=(Norm(width=HEAD_DIM),) * norms)


@pytest.mark.parametrize(("label", "heads"), [("QKV@rotary", 4), ("GQA-2@rotary", 2)])
@pytest.mark.parametrize("normed", [False, True])
def test_rotated_and_normalised_heads(label: str, heads: int, normed: bool) -> None:
    def sublayer(x: Tensor) -> Tensor:
        query = split(F.linear(x, matrix(D_MODEL, D_MODEL)), HEADS)
        key, value = (split(F.linear(x, matrix(12 * heads, D_MODEL)), heads) for _ in range(2))
        if normed:
            query, key = norm(query), norm(key)
        mixed = attend(turn(query), turn(key), value)
        return F.linear(join(mixed), matrix(D_MODEL, D_MODEL))

    layer = make_layer(make_attention(label, norms=2 if normed else 0))
    small = 2 * NORM_NUMBERS + HEADS + (NORM_NUMBERS * (HEADS + heads) if normed else 0)
    expected = activation_numbers(layer, D_MODEL) + small
    assert kept_numbers(written_out(sublayer)) == expected


def test_latent_attention() -> None:
    attention = LatentAttention(
        d_model=D_MODEL,
        num_heads=HEADS,
        q_rank=17,
        kv_rank=19,
        nope_dim=10,
        rope_dim=6,
        value_dim=16,
    )

    def sublayer(x: Tensor) -> Tensor:
        query = split(F.linear(norm(F.linear(x, matrix(17, D_MODEL))), matrix(64, 17)), HEADS)
        query = torch.cat((query[..., :10], turn(query[..., 10:])), dim=-1)
        latent = norm(F.linear(x, matrix(19, D_MODEL)))
        shared = turn(split(F.linear(x, matrix(6, D_MODEL)), 1)).expand(-1, -1, HEADS, -1)
        key = torch.cat((split(F.linear(latent, matrix(40, 19)), HEADS), shared), dim=-1)
        value = split(F.linear(latent, matrix(64, 19)), HEADS)
        mixed = attend(query, key, value)
        return F.linear(join(mixed), matrix(D_MODEL, 64))

    expected = activation_numbers(make_layer(attention), D_MODEL) + 4 * NORM_NUMBERS + HEADS
    assert kept_numbers(written_out(sublayer)) == expected


@pytest.mark.parametrize("label", ["QKV", "Q-K=V", "MQA"])
def test_cross_attention_keeps_keys_and_values_of_the_encoder(label: str) -> None:
    attention = make_attention(label)
    heads, tied = attention.config.num_kv_heads, len(attention.config.variant.cached) == 1

    def sublayer(x: Tensor) -> Tensor:
        # The encoder's output is kept once, as the output of its last norm.
        memory = torch.randn(x.shape[0], 3 * TOKENS, D_MODEL)
        query = split(F.linear(x, matrix(D_MODEL, D_MODEL)), HEADS)
        key = split(F.linear(memory, matrix(12 * heads, D_MODEL)), heads)
        value = key if tied else split(F.linear(memory, matrix(12 * heads, D_MODEL)), heads)
        mixed = attend(query, key, value, causal=False)
        return F.linear(join(mixed), matrix(D_MODEL, D_MODEL))

    def run(batch: int) -> Tensor:
        x = torch.randn(batch, TOKENS, D_MODEL, requires_grad=True)
        return x + sublayer(norm(x))

    plain = make_layer(attention)
    crossed = dataclasses.replace(
        plain,
        cross=dataclasses.replace(attention, memory="encoder"),
        norms=(Norm(width=D_MODEL),) * 3,
    )
    own = activation_numbers(crossed, D_MODEL) - activation_numbers(plain, D_MODEL)
    kept_memory = 3 * D_MODEL
    expected = own + 3 * crossing_numbers(crossed) + kept_memory + NORM_NUMBERS + HEADS
    assert kept_numbers(run) == expected
